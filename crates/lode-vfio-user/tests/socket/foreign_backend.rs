//! The emulated controller behind the trait that a foreign server has for its devices.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lode_bus::{Bus, DmaMemory, Registers};
use lode_nvme_emu::EmulatedController;
use lode_units::{Clock, Iova, MonotonicClock};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, ServerBackend};

/// What the foreign server was asked to do.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) maps: AtomicU64,
    pub(crate) unmaps: AtomicU64,
    pub(crate) resets: AtomicU64,
    pub(crate) signals: AtomicU64,
    pub(crate) doorbells: AtomicU64,
    /// How many of the next submissions to the first I/O queue it refuses.
    pub(crate) to_refuse: AtomicU64,
}

impl Seen {
    pub(crate) fn count(&self, of: impl Fn(&Self) -> &AtomicU64) -> u64 {
        of(self).load(Ordering::SeqCst)
    }

    fn is_to_be_refused(&self) -> bool {
        let one_less = |left: u64| left.checked_sub(1);
        let taken = self
            .to_refuse
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
        taken.is_ok()
    }
}

/// The emulated controller behind the foreign server's trait.
pub(crate) struct Backend {
    controller: EmulatedController,
    configuration: [u8; CONFIGURATION_BYTES],
    memory: Vec<DmaMemory>,
    clock: MonotonicClock,
    seen: Arc<Seen>,
}

impl Backend {
    pub(crate) fn new(controller: EmulatedController, seen: Arc<Seen>) -> Self {
        let mut configuration = [0; CONFIGURATION_BYTES];
        // An NVMe controller: programming interface, subclass, class.
        configuration[9..12].copy_from_slice(&[0x02, 0x08, 0x01]);
        Self {
            controller,
            configuration,
            memory: Vec::new(),
            clock: MonotonicClock::new(),
            seen,
        }
    }

    /// The foreign server works only when it is asked something, and so does what is behind it.
    fn work(&self) {
        self.controller.advance(self.clock.now());
    }
}

fn refused() -> io::Error {
    io::Error::from(io::ErrorKind::InvalidInput)
}

impl ServerBackend for Backend {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.work();
        let at = usize::try_from(offset).map_err(|_| refused())?;
        match region {
            BAR_0 => {
                let at = u32::try_from(offset).map_err(|_| refused())?;
                let registers = self.controller.registers();
                match data.len() {
                    4 => data.copy_from_slice(&registers.read_u32(at).to_le_bytes()),
                    8 => data.copy_from_slice(&registers.read_u64(at).to_le_bytes()),
                    _ => return Err(refused()),
                }
            }
            CONFIGURATION => {
                let source = self.configuration.get(at..at + data.len());
                data.copy_from_slice(source.ok_or_else(refused)?);
            }
            _ => return Err(refused()),
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        let at = usize::try_from(offset).map_err(|_| refused())?;
        match region {
            BAR_0 => {
                let at = u32::try_from(offset).map_err(|_| refused())?;
                if at == FIRST_IO_SUBMISSIONS && self.seen.is_to_be_refused() {
                    return Err(refused());
                }
                let registers = self.controller.registers();
                if let Ok(bytes) = <[u8; 4]>::try_from(data) {
                    registers.write_u32(at, u32::from_le_bytes(bytes));
                } else {
                    let bytes = <[u8; 8]>::try_from(data).map_err(|_| refused())?;
                    registers.write_u64(at, u64::from_le_bytes(bytes));
                }
                if at >= DOORBELLS {
                    self.seen.doorbells.fetch_add(1, Ordering::SeqCst);
                }
            }
            CONFIGURATION => {
                let target = self.configuration.get_mut(at..at + data.len());
                target.ok_or_else(refused)?.copy_from_slice(data);
            }
            _ => return Err(refused()),
        }
        self.work();
        Ok(())
    }

    fn dma_map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        file: Option<File>,
    ) -> io::Result<()> {
        assert_eq!(flags, DmaMapFlags::READ_WRITE);
        if self.memory.len() >= MEMORIES_MAX {
            return Err(refused());
        }
        let file = file.expect("memory comes with its descriptor");
        let length = usize::try_from(size).map_err(|_| refused())?;
        let memory = DmaMemory::adopt(file.as_fd(), offset, length, Iova::new(address))?;
        self.controller.map(&memory).expect("no two overlap");
        self.memory.push(memory);
        self.seen.maps.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn dma_unmap(&mut self, _flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        let wanted = |memory: &DmaMemory| {
            memory.iova().get() == address && memory.length_bytes() as u64 == size
        };
        let position = self.memory.iter().position(wanted).ok_or_else(refused)?;
        let memory = self.memory.swap_remove(position);
        self.controller.unmap(&memory).expect("it was mapped");
        self.seen.unmaps.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        self.seen.resets.fetch_add(1, Ordering::SeqCst);
        self.controller.reset_function().map_err(io::Error::other)
    }

    fn set_irqs(
        &mut self,
        index: u32,
        _flags: u32,
        start: u32,
        count: u32,
        files: Vec<File>,
    ) -> io::Result<()> {
        assert_eq!((index, count as usize), (MSIX, files.len()));
        for (vector, file) in (start..).zip(&files) {
            let vector = u16::try_from(vector).map_err(|_| refused())?;
            self.controller
                .route_interrupt(vector, file.as_fd())
                .map_err(io::Error::other)?;
            self.seen.signals.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }
}

pub(crate) const BAR_0: u32 = 0;
pub(crate) const CONFIGURATION: u32 = 7;
pub(crate) const CONFIGURATION_BYTES: usize = 256;
pub(crate) const MSIX: u32 = 2;
/// So many memories fit behind it.
pub(crate) const MEMORIES_MAX: usize = 64;
/// NVMe PCIe Transport 1.0 §3.1.2, with doorbells of 4 bytes.
const DOORBELLS: u32 = 0x1000;
const FIRST_IO_SUBMISSIONS: u32 = DOORBELLS + 8;
