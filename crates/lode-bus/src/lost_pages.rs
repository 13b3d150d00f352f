//! Mapped pages that vanish: the fault that the next access raises is answered with pages of all
//! ones instead of the end of the process.
//!
//! The kernel takes the pages of a mapped BAR away when the function is removed, powered down or
//! has its memory decoding switched off, and those of a file when another process shortens it; an
//! access then raises SIGBUS. The handler here looks for the faulting address among the mappings
//! that are watched, puts private memory full of ones in place of the mapping, marks it lost and
//! returns: the access is repeated and reads what a PCI read of an absent device reads. A fault
//! anywhere else goes to whoever handled it before.
//!
//! Invariants:
//! 1. The handler touches atomics and makes one system call, nothing else.
//! 2. A mapping is watched only while it lasts: [`PageWatch`] is dropped before the mapping.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// How many mappings of this process can be watched at once: every register window, and every
/// memory that another process shares with a controller served here.
pub(crate) const WATCHES_MAX: usize = 1024;

#[derive(Debug)]
struct Slot {
    is_taken: AtomicBool,
    /// 0 while nothing is watched here.
    start: AtomicUsize,
    length_bytes: AtomicUsize,
    is_lost: AtomicBool,
}

static SLOTS: [Slot; WATCHES_MAX] = [const {
    Slot {
        is_taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        length_bytes: AtomicUsize::new(0),
        is_lost: AtomicBool::new(false),
    }
}; WATCHES_MAX];

/// What handled SIGBUS before; set once, before the handler is installed.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();
static INSTALLED: OnceLock<bool> = OnceLock::new();

/// Keeps one mapping watched while it lives.
#[derive(Debug)]
pub(crate) struct PageWatch {
    slot: &'static Slot,
}

impl PageWatch {
    /// Watches the pages from `start` on; installs the handler the first time.
    ///
    /// # Errors
    /// When [`WATCHES_MAX`] mappings are watched already or the handler cannot be installed.
    pub(crate) fn new(start: *const u8, length_bytes: usize) -> io::Result<Self> {
        if !*INSTALLED.get_or_init(install) {
            return Err(io::Error::other("the handler of SIGBUS was refused"));
        }
        let slot = SLOTS
            .iter()
            .find(|slot| !slot.is_taken.swap(true, Ordering::AcqRel))
            .ok_or_else(|| io::Error::other("too many mappings are watched for vanishing pages"))?;
        slot.is_lost.store(false, Ordering::Relaxed);
        slot.length_bytes.store(length_bytes, Ordering::Relaxed);
        // Pairs with the acquire in `answer`: the length is there before the start.
        slot.start.store(start.addr(), Ordering::Release);
        Ok(Self { slot })
    }

    /// Whether an access found the device gone. Does not enter the kernel.
    pub(crate) fn is_lost(&self) -> bool {
        self.slot.is_lost.load(Ordering::Relaxed)
    }
}

impl Drop for PageWatch {
    fn drop(&mut self) {
        self.slot.start.store(0, Ordering::Release);
        self.slot.is_taken.store(false, Ordering::Release);
    }
}

fn install() -> bool {
    let Ok(previous) = current_action() else {
        return false;
    };
    if PREVIOUS.set(previous).is_err() {
        return false;
    }
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = answer;
    let mut action = previous;
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    set_action(&action).is_ok()
}

fn current_action() -> io::Result<libc::sigaction> {
    // SAFETY: all-zero bytes are a valid `sigaction`: integers and a null restorer.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a null new action only reads the current one into `action`, which is ours.
    let answer = unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut action) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(action)
}

fn set_action(action: &libc::sigaction) -> io::Result<()> {
    // SAFETY: `action` is a complete action: either the previous one, or ours with a handler of
    // the three arguments that SA_SIGINFO promises.
    let answer = unsafe { libc::sigaction(libc::SIGBUS, action, std::ptr::null_mut()) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The handler. Runs on the faulting thread in place of the access.
extern "C" fn answer(
    _signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel hands a valid `siginfo_t` to a handler that asked for one.
    let info = unsafe { &*info };
    // SAFETY: of SIGBUS the address is the member that is filled in.
    let address = unsafe { info.si_addr() }.addr();
    let is_answered = SLOTS.iter().any(|slot| slot.answer(address));
    if !is_answered && let Some(previous) = PREVIOUS.get() {
        // Not ours: the access is repeated under the action that was there before. Should even
        // that be refused, the repeated fault comes back here and the process makes no progress,
        // which a watchdog sees; there is nothing else that a handler may do.
        let _refused = set_action(previous).is_err();
    }
}

impl Slot {
    /// Puts ones in place of this mapping when `address` lies in it.
    fn answer(&self, address: usize) -> bool {
        let start = self.start.load(Ordering::Acquire);
        let length_bytes = self.length_bytes.load(Ordering::Relaxed);
        let is_inside = start != 0 && address.wrapping_sub(start) < length_bytes;
        if !is_inside || !replace(start, length_bytes) {
            return false;
        }
        self.is_lost.store(true, Ordering::Relaxed);
        true
    }
}

/// Maps private memory full of ones over a watched mapping.
fn replace(start: usize, length_bytes: usize) -> bool {
    let wanted = std::ptr::with_exposed_provenance_mut::<libc::c_void>(start);
    // SAFETY: the range is a whole mapping that a live `PageWatch` stands for, of which no
    // reference exists; replacing it leaves every pointer into it valid.
    let mapped = unsafe {
        libc::mmap(
            wanted,
            length_bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if mapped == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: the range has just been mapped readable and writable.
    unsafe { std::ptr::write_bytes(mapped.cast::<u8>(), 0xFF, length_bytes) };
    true
}
