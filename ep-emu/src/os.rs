//! The few calls of the operating system that std does not offer.
//!
//! Declared here by hand: the C library is linked anyway, and a dependency would bring thousands
//! of names for these few.

use std::fs::File;
use std::io;

/// Bytes of a page, or of several on machines with smaller ones.
pub(crate) const PAGE: usize = 1 << 16;

/// Anonymous memory that stays zero and unbacked until touched.
pub(crate) struct Pages {
    at: *mut u8,
    bytes: usize,
}

// SAFETY: `Pages` only owns the mapping; who reads or writes through it is the holder's concern.
unsafe impl Send for Pages {}

impl Pages {
    /// Private memory, a process's own.
    pub(crate) fn private(bytes: usize) -> io::Result<Self> {
        imp::map(bytes, false).map(|at| Self { at, bytes })
    }

    /// Memory that a forked child shares with its parent; nobody can touch it before it is opened.
    pub(crate) fn shared(bytes: usize) -> io::Result<Self> {
        imp::map(bytes, true).map(|at| Self { at, bytes })
    }

    /// Lets everybody touch the first `bytes` of shared memory.
    pub(crate) fn open(&self, bytes: usize) -> io::Result<()> {
        imp::open(self.at, bytes.min(self.bytes))
    }

    /// Puts the memory of a file in the place of the `bytes` from `offset` on; without one, fresh zeros. Both numbers
    /// are whole pages.
    pub(crate) fn place(&self, offset: usize, bytes: usize, file: Option<&File>) -> io::Result<()> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => imp::place(self.at.wrapping_add(offset), bytes, file),
            _ => Err(io::Error::from(io::ErrorKind::InvalidInput)),
        }
    }

    /// First byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.at
    }

    /// Bytes mapped.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        imp::unmap(self.at, self.bytes);
    }
}

/// How a child ended.
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "there are no children"))]
pub(crate) enum Ended {
    /// By itself.
    Exited,
    /// By this signal.
    Signal(i32),
}

pub(crate) use imp::{fork_with_pipe, memory_file, path_of, report_crashes};

#[cfg(target_os = "linux")]
mod imp {
    use super::Ended;
    use std::ffi::{c_char, c_int, c_long, c_uint, c_void};
    use std::fs::File;
    use std::io::{self, Write};
    use std::os::fd::{AsRawFd, FromRawFd};
    use std::path::PathBuf;
    use std::ptr;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicI32, Ordering};

    const PROT_NONE: c_int = 0;
    const PROT_READ_WRITE: c_int = 3;
    const MAP_SHARED: c_int = 1;
    const MAP_PRIVATE: c_int = 2;
    const MAP_FIXED: c_int = 0x10;
    const MAP_ANONYMOUS: c_int = 0x20;
    const MAP_NORESERVE: c_int = 0x4000;
    const MFD_CLOEXEC: c_uint = 1;
    const SIGKILL: c_int = 9;
    const SIGUSR1: c_int = 10;
    /// Illegal instruction, abort, bus error, arithmetic, segment, and the parent's question.
    const REPORTED: [c_int; 6] = [4, 6, 7, 8, 11, SIGUSR1];
    const SA_SIGINFO: c_int = 4;
    const SA_ONSTACK: c_int = 0x0800_0000;
    const SA_RESETHAND: c_int = 0x8000_0000u32 as c_int;
    const SIGNAL_STACK: usize = 256 << 10;
    /// Where the program counter lies in the context that a signal handler gets.
    const PC_OFFSET: usize = if cfg!(target_arch = "x86_64") { 168 } else { 440 };

    /// `struct sigaction` of Linux's C libraries on 64-bit machines.
    #[repr(C)]
    struct SigAction {
        handler: usize,
        mask: [u64; 16],
        flags: c_int,
        restorer: usize,
    }

    /// `stack_t`.
    #[repr(C)]
    struct SigStack {
        at: *mut c_void,
        flags: c_int,
        bytes: usize,
    }

    unsafe extern "C" {
        fn mmap(
            at: *mut c_void,
            bytes: usize,
            prot: c_int,
            flags: c_int,
            fd: c_int,
            offset: c_long,
        ) -> *mut c_void;
        fn munmap(at: *mut c_void, bytes: usize) -> c_int;
        fn mprotect(at: *mut c_void, bytes: usize, prot: c_int) -> c_int;
        fn memfd_create(name: *const c_char, flags: c_uint) -> c_int;
        fn pipe(ends: *mut c_int) -> c_int;
        fn fork() -> c_int;
        fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
        fn kill(pid: c_int, signal: c_int) -> c_int;
        fn _exit(status: c_int) -> !;
        fn close(fd: c_int) -> c_int;
        fn sigaction(signal: c_int, new: *const SigAction, old: *mut SigAction) -> c_int;
        fn sigaltstack(new: *const SigStack, old: *mut SigStack) -> c_int;
    }

    pub(super) fn map(bytes: usize, shared: bool) -> io::Result<*mut u8> {
        let (kind, prot) =
            if shared { (MAP_SHARED, PROT_NONE) } else { (MAP_PRIVATE, PROT_READ_WRITE) };
        let flags = kind | MAP_ANONYMOUS | MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping touches no existing memory.
        let at = unsafe { mmap(ptr::null_mut(), bytes.max(1), prot, flags, -1, 0) };
        if at as isize == -1 { Err(io::Error::last_os_error()) } else { Ok(at.cast()) }
    }

    pub(super) fn open(at: *mut u8, bytes: usize) -> io::Result<()> {
        // SAFETY: the range lies in a mapping of ours, and loses nothing by it.
        match unsafe { mprotect(at.cast(), bytes, PROT_READ_WRITE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(super) fn place(at: *mut u8, bytes: usize, file: Option<&File>) -> io::Result<()> {
        let (kind, fd) = file.map_or((MAP_ANONYMOUS, -1), |file| (0, file.as_raw_fd()));
        let flags = MAP_SHARED | MAP_FIXED | MAP_NORESERVE | kind;
        // SAFETY: the range lies in a mapping of ours, of which it replaces whole pages that nobody borrows.
        let placed = unsafe { mmap(at.cast(), bytes, PROT_READ_WRITE, flags, fd, 0) };
        if placed as isize == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Zeros that other processes can map as well.
    pub(crate) fn memory_file(bytes: usize) -> io::Result<File> {
        // SAFETY: the name is a string that ends with a zero.
        let fd = unsafe { memfd_create(c"window".as_ptr(), MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just made the descriptor for us.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(bytes as u64)?;
        Ok(file)
    }

    pub(super) fn unmap(at: *mut u8, bytes: usize) {
        // SAFETY: `at` and `bytes` are those of one earlier `map`, and its owner is going away.
        unsafe { munmap(at.cast(), bytes.max(1)) };
    }

    /// Where other programs find an open file, whatever became of its name.
    pub(crate) fn path_of(file: &File) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()))
    }

    /// A forked process and the pipe on which it answers.
    pub(crate) struct Child {
        pid: c_int,
        /// What the child writes.
        pub(crate) answers: File,
        reaped: bool,
    }

    /// What the handler needs: where to write, and who makes the message.
    static CRASH_PIPE: AtomicI32 = AtomicI32::new(-1);
    static CRASH_MESSAGE: OnceLock<fn(usize) -> Vec<u8>> = OnceLock::new();

    /// From now on a deadly signal makes this process write `message(pc)` before it ends.
    pub(crate) fn report_crashes(pipe: &File, message: fn(usize) -> Vec<u8>) {
        CRASH_PIPE.store(pipe.as_raw_fd(), Ordering::Relaxed);
        CRASH_MESSAGE.get_or_init(|| message);
        let Ok(at) = map(SIGNAL_STACK, false) else { return };
        let stack = SigStack { at: at.cast(), flags: 0, bytes: SIGNAL_STACK };
        // SAFETY: the mapping is never unmapped, and `stack` outlives the call.
        unsafe { sigaltstack(&stack, ptr::null_mut()) };
        let action = SigAction {
            handler: on_signal as *const () as usize,
            mask: [0; 16],
            flags: SA_SIGINFO | SA_ONSTACK | SA_RESETHAND,
            restorer: 0,
        };
        for signal in REPORTED {
            // SAFETY: `action` has the C library's layout and outlives the call.
            unsafe { sigaction(signal, &action, ptr::null_mut()) };
        }
    }

    /// Runs on its own stack, in a process that has nothing left to lose.
    extern "C" fn on_signal(signal: c_int, _info: *const c_void, context: *const c_void) {
        // SAFETY: the kernel passes a `ucontext_t`, which has the program counter there.
        let pc = unsafe { context.byte_add(PC_OFFSET).cast::<usize>().read() };
        if let Some(message) = CRASH_MESSAGE.get() {
            let message = message(pc);
            // SAFETY: the descriptor was open when it was stored and this process keeps it.
            let mut pipe = unsafe { File::from_raw_fd(CRASH_PIPE.load(Ordering::Relaxed)) };
            // Nobody is left to hear about an error.
            let _ = pipe.write_all(&message);
        }
        if signal == SIGUSR1 {
            // SAFETY: ends this process at once; the parent has what it asked for.
            unsafe { _exit(1) }
        }
        // The action was reset when the handler was entered: the instruction runs again, and this
        // time the signal ends the process as the parent expects.
    }

    impl Child {
        /// Asks the child where it is; it answers and ends.
        pub(crate) fn ask(&self) {
            // SAFETY: `pid` is our own child and has not been waited for yet.
            unsafe { kill(self.pid, SIGUSR1) };
        }

        /// Ends the child if it still runs, and collects it.
        pub(crate) fn reap(&mut self, end_it: bool) -> Ended {
            if end_it {
                // SAFETY: `pid` is our own child and has not been waited for yet.
                unsafe { kill(self.pid, SIGKILL) };
            }
            let mut status = 0;
            // SAFETY: `pid` is our own child; `status` outlives the call.
            unsafe { waitpid(self.pid, &mut status, 0) };
            self.reaped = true;
            let signal = status & 0x7f;
            if signal == 0 { Ended::Exited } else { Ended::Signal(signal) }
        }
    }

    impl Drop for Child {
        fn drop(&mut self) {
            if !self.reaped {
                self.reap(true);
            }
        }
    }

    /// Forks; the child runs `body` with the writing end of a pipe and ends with its status.
    pub(crate) fn fork_with_pipe(body: impl FnOnce(File) -> i32) -> io::Result<Child> {
        let mut ends = [0; 2];
        // SAFETY: `ends` has room for the two descriptors.
        if unsafe { pipe(ends.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the child runs only `body` and leaves through `_exit`; `body` is written for
        // that (no locks of other threads, no standard streams).
        match unsafe { fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // SAFETY: both descriptors come from the `pipe` call above.
                let writer = unsafe {
                    close(ends[0]);
                    File::from_raw_fd(ends[1])
                };
                let status = body(writer);
                // SAFETY: ends this process at once, as a forked child must.
                unsafe { _exit(status) }
            }
            pid => {
                // SAFETY: both descriptors come from the `pipe` call above.
                let answers = unsafe {
                    close(ends[1]);
                    File::from_raw_fd(ends[0])
                };
                Ok(Child { pid, answers, reaped: false })
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    use super::Ended;
    use std::fs::File;
    use std::io;
    use std::path::PathBuf;

    pub(super) fn map(_bytes: usize, _shared: bool) -> io::Result<*mut u8> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    pub(super) fn open(_at: *mut u8, _bytes: usize) -> io::Result<()> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    pub(super) fn place(_at: *mut u8, _bytes: usize, _file: Option<&File>) -> io::Result<()> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    /// There is no such memory here.
    pub(crate) fn memory_file(_bytes: usize) -> io::Result<File> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    pub(super) fn unmap(_at: *mut u8, _bytes: usize) {}

    /// Nothing here has a name when it is gone.
    pub(crate) fn path_of(_file: &File) -> PathBuf {
        PathBuf::new()
    }

    /// A forked process; this platform has none.
    pub(crate) struct Child {
        /// What the child writes.
        pub(crate) answers: File,
    }

    /// Nothing to set up.
    pub(crate) fn report_crashes(_pipe: &File, _message: fn(usize) -> Vec<u8>) {}

    impl Child {
        /// Nobody to ask.
        pub(crate) fn ask(&self) {}

        /// Nothing to collect.
        pub(crate) fn reap(&mut self, _end_it: bool) -> Ended {
            Ended::Exited
        }
    }

    /// Always refuses.
    pub(crate) fn fork_with_pipe(_body: impl FnOnce(File) -> i32) -> io::Result<Child> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
}
