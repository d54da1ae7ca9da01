//! Keeps a process's signal handlers unchanged while libraries are loaded.
//!
//! Libraries of some network cards (libpsm2, which distributions load with libfabric) replace the handlers
//! of signals that end a process. Their handlers print a trace and call `exit`, which runs handlers of
//! other libraries while threads still use them. A process that should die then hangs, and an interrupt
//! that Python would raise ends the process.

use std::mem::MaybeUninit;
use std::ptr;

/// All that such libraries take.
const KEPT: [libc::c_int; 8] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGABRT,
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGPIPE,
];

/// Does `work`, and puts back what it changed of how the process takes these signals.
pub(super) fn kept<T>(work: impl FnOnce() -> T) -> T {
    let before = KEPT.map(action);
    let result = work();
    for (signal, before) in KEPT.into_iter().zip(before) {
        if let Some(before) = before {
            // SAFETY: what the system said of this signal, given back to it.
            let _ = unsafe { libc::sigaction(signal, &before, ptr::null_mut()) };
        }
    }
    result
}

/// What the process does on a signal.
fn action(signal: libc::c_int) -> Option<libc::sigaction> {
    let mut now = MaybeUninit::zeroed();
    // SAFETY: changes nothing and writes one value, of which zeros are one, too.
    unsafe {
        let code = libc::sigaction(signal, ptr::null(), now.as_mut_ptr());
        (code == 0).then(|| now.assume_init())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn taken_over(_signal: libc::c_int) {}

    #[test]
    fn a_handler_that_a_library_sets_is_gone_afterwards() {
        // A function may have several addresses.
        let own = taken_over as *const () as libc::sighandler_t;
        let handlers = || KEPT.map(|signal| action(signal).expect("a signal").sa_sigaction);
        let before = handlers();
        let during = kept(|| {
            for signal in KEPT {
                // SAFETY: the handler does nothing, so that it can run at any time.
                unsafe { libc::signal(signal, own) };
            }
            handlers()
        });
        assert!(during.iter().all(|handler| *handler == own), "{during:?}");
        assert_eq!(handlers(), before);
    }
}
