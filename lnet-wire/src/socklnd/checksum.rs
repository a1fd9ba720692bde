//! The checksum of messages: CRC-32 with the polynomial of Ethernet, without the final inversion.

/// Reflected.
const POLYNOMIAL: u32 = 0xEDB8_8320;

static TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let (mut value, mut bit) = (index as u32, 0);
        while bit < 8 {
            value = if value & 1 == 0 { value >> 1 } else { value >> 1 ^ POLYNOMIAL };
            bit += 1;
        }
        table[index] = value;
        index += 1;
    }
    table
};

/// A checksum of the bytes so far (`socklnd_lib.c: ksocknal_csum`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checksum(u32);

impl Checksum {
    /// The checksum of no bytes.
    #[must_use]
    pub const fn new() -> Self {
        Self(u32::MAX)
    }

    /// Goes on with these bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let index = (self.0 ^ u32::from(*byte)) & 0xFF;
            self.0 = self.0 >> 8 ^ TABLE[index as usize];
        }
    }

    /// Its value.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl Default for Checksum {
    fn default() -> Self {
        Self::new()
    }
}
