//! Number expressions: `7`, `[1,3-5]`, `[0-255/2]`.

/// Numbers from `low` to `high` in steps of `stride`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Range {
    low: u32,
    high: u32,
    stride: u32,
}

impl Range {
    fn count(self) -> u64 {
        u64::from((self.high - self.low) / self.stride) + 1
    }
}

/// The members of a bracket expression, in their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Expression(Vec<Range>);

impl Expression {
    /// Reads what is between the brackets; numbers go up to `max` and have digits of `radix`.
    pub(super) fn parse(text: &str, max: u32, radix: u32) -> Option<Self> {
        let number = |text: &str| {
            let digits = text.trim();
            let fits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
            u32::from_str_radix(digits, radix).ok().filter(|value| fits && *value <= max)
        };
        let range = |text: &str| {
            let Some((low, rest)) = text.split_once('-') else {
                let value = number(text)?;
                return Some(Range { low: value, high: value, stride: 1 });
            };
            let (high, stride) = match rest.split_once('/') {
                Some((high, stride)) => (number(high)?, number(stride)?),
                None => (number(rest)?, 1),
            };
            let low = number(low)?;
            (low <= high && stride > 0).then_some(Range { low, high, stride })
        };
        text.split(',').map(range).collect::<Option<Vec<_>>>().map(Self)
    }

    /// How many numbers it enumerates.
    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(|range| range.count()).sum()
    }

    /// The numbers.
    pub(super) fn values(&self) -> impl Iterator<Item = u32> + Clone + '_ {
        self.0.iter().flat_map(|range| (range.low..=range.high).step_by(range.stride as usize))
    }
}
