//! The baseline: `AF_XDP` without LNet. One socket on queue 0 of each end, an XDP program that redirects
//! every packet, frames of a given size, nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use lnet_io::netlink::Interface;
use lnet_io::xsk::{self, CHUNK_BYTES, Frame, Kick, Queue, QueueConfig, RingDescriptor, Umem, UmemConfig};
use lnet_xdp::bpf::{Object, ObjectKind, XdpProgram};

use crate::link::Side;
use crate::measure::Endpoint;

const FRAMES: u32 = 4096;
const BURST: u32 = 64;
/// Received frames that are worth giving back: a quarter of those to receive into.
const REFILL: usize = FRAMES as usize / 8;
/// Bytes of the Ethernet, IPv4 and UDP headers, which the raw frames have in size only.
pub const HEADERS_BYTES: usize = 42;

/// One end of the raw link.
#[derive(Debug)]
pub struct End {
    umem: Arc<Umem>,
    /// Bytes of the frames that it sends.
    bytes: usize,
    /// Frames to send, the one that was sent last at the end.
    stock: Vec<Frame>,
    /// Frames to give to the kernel.
    spare: Vec<Frame>,
    queue: Queue,
    /// What long frames are filled with, and where their content goes: one copy a side, as any use of the
    /// ring takes.
    source: Vec<u8>,
    sink: Vec<u8>,
    /// Whether the next descriptor belongs to the packet of the last one.
    goes_on: bool,
    /// Redirects while it lives.
    _program: XdpProgram,
}

impl End {
    /// Opens queue 0 of a side's interface, in the calling thread's network namespace, to send frames of so
    /// many bytes.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn open(side: Side<'_>, bytes: usize) -> anyhow::Result<Self> {
        let interface = Interface::by_name(side.interface)?;
        let (umem, mut stock) = Umem::new(&UmemConfig::new(FRAMES))?;
        let mut queue = xsk::open_queue(&umem, &QueueConfig::new(interface.index, 0))?;
        // The LND fetches ahead too: here for as much as is looked at.
        if let Some(rx) = &mut queue.sockets[0].rx {
            rx.fetch_ahead(1);
        }
        let mut program = XdpProgram::load_baseline(&Object::of(ObjectKind::Default))?;
        program.set_socket(0, 0, &queue.sockets[0].device)?;
        program.attach(side.interface, None)?;
        // Half of the frames receive, the others send.
        let spare = stock.split_off((FRAMES / 2) as usize);
        let (source, sink) = (vec![7; CHUNK_BYTES as usize], vec![0; CHUNK_BYTES as usize]);
        let mut end =
            Self { umem, bytes, stock, spare, queue, source, sink, goes_on: false, _program: program };
        end.refill();
        Ok(end)
    }

    /// Gives received frames back to the kernel, seldom and many at a time, as the xdp LND does.
    fn refill(&mut self) {
        if self.spare.len() >= REFILL {
            self.queue.fill.fill(&mut self.spare);
        }
    }

    fn complete(&mut self) {
        let stock = &mut self.stock;
        self.queue.completion.drain(BURST, |frame| stock.push(frame));
    }

    /// Writes and pushes one frame, of as many chunks as it takes; whether there was room.
    fn push(&mut self, marker: u64) -> bool {
        let bytes = self.bytes;
        let chunks = bytes.div_ceil(CHUNK_BYTES as usize);
        let socket = &mut self.queue.sockets[0];
        if self.stock.len() < chunks || (socket.tx.free_slots() as usize) < chunks {
            return false;
        }
        for part in 0..chunks {
            let Some(mut frame) = self.stock.pop() else { unreachable!("the stock was long enough") };
            let length = (bytes - part * CHUNK_BYTES as usize).min(CHUNK_BYTES as usize);
            let content = &mut self.umem.bytes_mut(&mut frame)[..length];
            if part == 0 {
                content[..12].fill(2);
                content[12..14].copy_from_slice(&0x88B5u16.to_be_bytes());
                content[14..22].copy_from_slice(&marker.to_le_bytes());
            }
            if chunks > 1 {
                // What is sent in bulk comes from somewhere.
                let from = self.source.len().min(length.saturating_sub(22));
                content[length - from..].copy_from_slice(&self.source[..from]);
            }
            let more = part + 1 < chunks;
            let descriptor = RingDescriptor { frame, offset: 0, length: length as u32, more };
            if socket.tx.push(descriptor).is_err() {
                unreachable!("the ring had room for the whole frame");
            }
        }
        true
    }

    fn kick(&mut self) -> anyhow::Result<()> {
        let socket = &mut self.queue.sockets[0];
        socket.tx.commit();
        while socket.device.kick()? != Kick::Done {}
        Ok(())
    }

    /// Takes what has arrived and gives the marker of each packet to `each`. The content of packets of
    /// several chunks is copied out.
    fn take(&mut self, mut each: impl FnMut(u64)) -> u32 {
        let (umem, spare, sink, goes_on) = (&self.umem, &mut self.spare, &mut self.sink, &mut self.goes_on);
        let mut packets = 0;
        let Some(rx) = &mut self.queue.sockets[0].rx else { return 0 };
        rx.receive(BURST, |descriptor| {
            let start = descriptor.offset as usize;
            let content = &umem.bytes(&descriptor.frame)[start..start + descriptor.length as usize];
            if !*goes_on {
                each(content.get(14..22).map_or(0, |marker| marker.try_into().map_or(0, u64::from_le_bytes)));
            }
            if *goes_on || descriptor.more {
                sink[..content.len()].copy_from_slice(content);
            }
            *goes_on = descriptor.more;
            packets += u32::from(!descriptor.more);
            spare.push(descriptor.frame);
        });
        packets
    }
}

impl Endpoint for End {
    fn send(&mut self, number: u64) -> anyhow::Result<()> {
        ensure!(self.push(number), "no frame to send");
        self.kick()
    }

    fn receive(&mut self, each: impl FnMut(u64)) {
        self.take(each);
    }

    fn settle(&mut self) -> anyhow::Result<()> {
        self.complete();
        self.refill();
        Ok(())
    }

    fn echo(&mut self, stop: &AtomicBool) -> anyhow::Result<()> {
        let mut markers = Vec::with_capacity(BURST as usize);
        while !stop.load(Ordering::Relaxed) {
            self.complete();
            self.take(|marker| markers.push(marker));
            if markers.is_empty() {
                std::hint::spin_loop();
                continue;
            }
            for marker in markers.drain(..) {
                ensure!(self.push(marker), "the echo has no frame to answer with");
            }
            self.kick()?;
            self.refill();
        }
        Ok(())
    }

    fn flood(&mut self, time: Duration) -> anyhow::Result<u64> {
        let (begun, mut sent) = (Instant::now(), 0);
        while begun.elapsed() < time {
            let mut burst = 0;
            while burst < BURST && self.push(sent + u64::from(burst)) {
                burst += 1;
            }
            self.kick()?;
            self.complete();
            sent += u64::from(burst);
        }
        Ok(sent)
    }

    fn sink(&mut self, stop: &AtomicBool, received: &AtomicU64) {
        while !stop.load(Ordering::Relaxed) {
            let count = self.take(|_| {});
            if count == 0 {
                std::hint::spin_loop();
            } else {
                received.fetch_add(u64::from(count), Ordering::Relaxed);
                self.refill();
            }
        }
    }
}
