//! Shapes of buffers and of the descriptors made from them.

use super::*;

/// Memory of so many segments of so many bytes.
fn memory(segments: usize, segment_bytes: usize) -> Memory {
    Memory::zeroed(segments, segment_bytes).unwrap()
}

#[test]
fn kc_01_limits_are_those_of_lnet_in_fragments_and_not_in_pages() {
    let setup = Setup::new();
    let limits = *setup.domain.limits();
    let most = (limits.buffer_bytes, limits.segment_bytes, limits.segments, limits.descriptor_bytes);
    assert_eq!(most, (1 << 20, 1 << 20, 256, 48));
    // A segment is one fragment, wherever it begins and however many pages it spans.
    for segment_bytes in [1, 2047, 2048, 4095, 4096, 4097, 8191, 8192, 8193, 1 << 20] {
        assert_eq!(memory(1, segment_bytes).segments().count(), 1);
        let buffer = setup.domain.register(memory(1, segment_bytes)).unwrap();
        assert_eq!(buffer.size_bytes(), segment_bytes as u64);
    }
    setup.finish();
}

#[test]
fn kc_02_the_largest_shapes_are_registered_and_larger_ones_are_refused() {
    let setup = Setup::new();
    for (segments, segment_bytes) in [(256, 4096), (1, 1 << 20), (256, 1), (255, 4097)] {
        let memory = memory(segments, segment_bytes);
        let addresses: Vec<_> = memory.segments().map(<[u8]>::as_ptr).collect();
        let buffer = setup.domain.register(memory).unwrap();
        let registered: Vec<_> = buffer.memory().segments().map(<[u8]>::as_ptr).collect();
        assert_eq!(registered, addresses, "registration copies nothing");
    }
    for (segments, segment_bytes) in [(256, 4097), (1, (1 << 20) + 1), (2, 1 << 20)] {
        let refused = setup.domain.register(memory(segments, segment_bytes)).unwrap_err();
        assert_eq!(refused.0.errno(), Errno::TooBig, "{segments} of {segment_bytes}");
        assert_eq!(refused.1.segments().count(), segments, "what is refused comes back");
    }
    let refused = Memory::zeroed(257, 1).unwrap_err();
    assert_eq!(refused.errno(), Errno::TooBig);
    setup.finish();
}

#[test]
fn kc_06_a_descriptor_covers_the_bytes_that_are_sent_and_the_buffer_comes_back_whole() {
    const SEGMENT_BYTES: usize = 4096;
    let mut setup = Setup::new();
    let mut buffer = setup.domain.register(memory(3, SEGMENT_BYTES)).unwrap();
    for length_bytes in [1, 4095, 4096, 4097, 3 * 4096] {
        let send = Operation::PassiveSend { initiator: None, length_bytes };
        let added = setup.tm.add(buffer, send).unwrap();
        let Some(Call::Attach { md, .. }) = setup.lnet.lab(|lab| lab.calls.pop()) else { panic!() };
        assert_eq!(md.length_bytes, length_bytes);
        setup.lnet.post(last(event(EventKind::Get, added.id.number)));
        buffer = setup.event().into_buffer().unwrap();
        let segments: Vec<_> = buffer.memory().segments().map(<[u8]>::len).collect();
        assert_eq!(segments, [SEGMENT_BYTES; 3]);
    }
    drop(buffer);
    setup.finish();
}
