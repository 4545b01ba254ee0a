//! The clock that counts sleep, local time, signals, and terminals.

use std::os::raw::{c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

#[cfg(target_os = "linux")]
const CLOCK: c_int = 7; // CLOCK_BOOTTIME: after an hour of sleep, a laptop's lease is over
#[cfg(not(target_os = "linux"))]
const CLOCK: c_int = 6; // macOS: CLOCK_MONOTONIC, which counts sleep there

pub(crate) const SIGINT: c_int = 2;
pub(crate) const SIGTERM: c_int = 15;
#[cfg(target_os = "linux")]
pub(crate) const SIGTSTP: c_int = 20;
#[cfg(not(target_os = "linux"))]
pub(crate) const SIGTSTP: c_int = 18;

const RLIMIT_CORE: c_int = 4;
#[cfg(target_os = "linux")]
pub(crate) const O_NONBLOCK: c_int = 0o4000;
#[cfg(not(target_os = "linux"))]
pub(crate) const O_NONBLOCK: c_int = 4;

#[repr(C)]
struct Limit {
    current: u64,
    most: u64,
}

#[repr(C)]
struct TimeSpec {
    seconds: i64,
    nanoseconds: c_long,
}

/// The members of `struct tm`. Some systems append others.
#[repr(C)]
#[derive(Default)]
struct BrokenDownTime {
    second: c_int,
    minute: c_int,
    hour: c_int,
    day: c_int,
    month: c_int,
    year: c_int,
    others: [u64; 8],
}

extern "C" {
    fn clock_gettime(clock: c_int, time: *mut TimeSpec) -> c_int;
    fn localtime_r(time: *const i64, into: *mut BrokenDownTime) -> *mut BrokenDownTime;
    fn signal(number: c_int, handler: usize) -> usize;
    fn write(fd: c_int, bytes: *const c_void, count: usize) -> isize;
    fn isatty(fd: c_int) -> c_int;
    fn _exit(code: c_int) -> !;
    fn geteuid() -> u32;
    fn getrlimit(resource: c_int, limit: *mut Limit) -> c_int;
    fn setrlimit(resource: c_int, limit: *const Limit) -> c_int;
    fn gethostname(name: *mut c_char, size: usize) -> c_int;
}

/// Milliseconds of the clock that measures leases.
pub(crate) fn now_ms() -> f64 {
    let mut time = TimeSpec { seconds: 0, nanoseconds: 0 };
    // SAFETY: the pointer is valid, and the clock exists on the systems above.
    unsafe { clock_gettime(CLOCK, &mut time) };
    time.seconds as f64 * 1e3 + time.nanoseconds as f64 / 1e6
}

/// Year, month, day, hour, minute, second in the local time zone.
pub(crate) fn local_time(unix_seconds: i64) -> [i32; 6] {
    let mut time = BrokenDownTime::default();
    // SAFETY: both pointers are valid, and the second one has more room than any `struct tm`.
    unsafe { localtime_r(&unix_seconds, &mut time) };
    [time.year + 1900, time.month + 1, time.day, time.hour, time.minute, time.second]
}

/// The user whose rights this process has.
pub(crate) fn effective_user() -> u32 {
    // SAFETY: `geteuid` has no arguments and cannot fail.
    unsafe { geteuid() }
}

/// A dump of this process would hold what it must keep secret.
pub(crate) fn write_no_core_dumps() {
    let mut limit = Limit { current: 0, most: 0 };
    // SAFETY: both functions only use the struct, which lives until they return.
    unsafe {
        if getrlimit(RLIMIT_CORE, &mut limit) == 0 {
            limit.current = 0;
            setrlimit(RLIMIT_CORE, &limit);
        }
    }
}

pub(crate) fn is_stderr_terminal() -> bool {
    // SAFETY: takes no pointer.
    unsafe { isatty(2) == 1 }
}

pub(crate) fn host_name() -> String {
    let mut name = [0_u8; 256];
    // SAFETY: the buffer is valid for its whole length, and the last byte stays 0.
    unsafe { gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    let end = name.iter().position(|c| *c == 0).unwrap_or(0);
    String::from_utf8_lossy(&name[..end]).into_owned()
}

// -- signals ----------------------------------------------------------------------------------------------------------

static SIGNALS_TO: AtomicI32 = AtomicI32::new(-1);
static INTERRUPTS: AtomicU32 = AtomicU32::new(0);

/// Writes the number of the signal into the descriptor. Only does what a signal handler may do.
extern "C" fn on_signal(number: c_int) {
    if number == SIGINT && INTERRUPTS.fetch_add(1, Ordering::SeqCst) > 0 {
        // SAFETY: ends the process.
        unsafe { _exit(130) };
    }
    let byte = number as u8;
    let fd = SIGNALS_TO.load(Ordering::SeqCst);
    if fd >= 0 {
        // SAFETY: one byte of the stack is valid. A full pipe is no loss: it has such bytes already.
        unsafe { write(fd, (&byte as *const u8).cast(), 1) };
    }
}

/// The handlers before this one. They return when it is dropped.
pub(crate) struct Signals {
    before: Vec<(c_int, usize)>,
}

impl Signals {
    /// Writes TERM, INT and TSTP as bytes into this descriptor. A second INT exits at once with 130.
    pub fn pass_to(fd: c_int) -> Self {
        SIGNALS_TO.store(fd, Ordering::SeqCst);
        INTERRUPTS.store(0, Ordering::SeqCst);
        // SAFETY: the handler only uses atomics, write and _exit.
        let install = |number| (number, unsafe { signal(number, on_signal as extern "C" fn(c_int) as usize) });
        Self { before: [SIGTERM, SIGINT, SIGTSTP].into_iter().map(install).collect() }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (number, handler) in &self.before {
            // SAFETY: restores what `signal` returned.
            unsafe { signal(*number, *handler) };
        }
        SIGNALS_TO.store(-1, Ordering::SeqCst);
    }
}
