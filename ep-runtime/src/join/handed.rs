//! Hands a listener from a process to one that it starts, so that the port is never free in between.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// The variable that holds the descriptor's number, beside the variable `name` with the id.
fn variable(name: &str) -> String {
    format!("{name}_LISTENER")
}

/// Gives `listener` to the process that `command` starts.
pub(super) fn give(command: &mut Command, name: &str, listener: TcpListener) {
    command.env(variable(name), listener.as_raw_fd().to_string());
    let keep = move || match set_flags(listener.as_raw_fd(), 0) {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: between fork and exec the closure makes one call of the system, which takes no lock and
    // no memory.
    unsafe { command.pre_exec(keep) };
}

/// The listener at `address` that this process was given beside the variable `name`, once. None if
/// it was not: the variable may be meant for the process that started this one.
pub(super) fn take(name: &str, address: SocketAddr) -> Option<TcpListener> {
    static TAKEN: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());
    let descriptor: RawFd = std::env::var(variable(name)).ok()?.parse().ok()?;
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    if descriptor < 0 || taken.contains(&descriptor) || !listens(descriptor) {
        return None;
    }
    // SAFETY: a socket that listens and is open across exec is the one that the parent gave; nobody
    // in this process has taken it yet.
    let listener = unsafe { TcpListener::from_raw_fd(descriptor) };
    taken.push(descriptor);
    if !listener.local_addr().is_ok_and(|own| own == address) {
        // It is somebody else's.
        std::mem::forget(listener);
        return None;
    }
    // Not for the processes that this one starts. If it fails they keep the port longer.
    set_flags(descriptor, libc::FD_CLOEXEC);
    Some(listener)
}

/// Whether a descriptor is a socket that listens, and is inherited.
fn listens(descriptor: RawFd) -> bool {
    let mut yes: libc::c_int = 0;
    let mut bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: both calls accept any number; the option writes at most `bytes` bytes into `yes`.
    let (flags, asked) = unsafe {
        let value = (&raw mut yes).cast();
        let (level, name) = (libc::SOL_SOCKET, libc::SO_ACCEPTCONN);
        let asked = libc::getsockopt(descriptor, level, name, value, &mut bytes);
        (libc::fcntl(descriptor, libc::F_GETFD), asked)
    };
    flags == 0 && asked == 0 && yes == 1
}

fn set_flags(descriptor: RawFd, flags: libc::c_int) -> libc::c_int {
    // SAFETY: the call changes flags of the descriptor alone.
    unsafe { libc::fcntl(descriptor, libc::F_SETFD, flags) }
}
