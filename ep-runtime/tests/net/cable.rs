//! Two network namespaces and a cable between them that delays, loses, and can be cut.
//!
//! A thread enters a namespace of its own, makes a network device there, and starts a rank, which lives in
//! the same namespace. What goes out of the devices comes to this process, which carries it to the other
//! one. It needs the right to make namespaces.

use std::ffi::{c_int, c_short};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The addresses of the two ends.
pub(crate) const ENDS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 78, 0, 1), Ipv4Addr::new(10, 78, 0, 2)];

const TUNSETIFF: libc::c_ulong = 0x4004_54ca;

/// Packets in one direction that wait for their moment; more are lost.
const LINE_MAX: usize = 20_000;

/// `struct ifreq`, as the calls here use it.
#[repr(C)]
struct Request {
    name: [u8; 16],
    value: [u8; 24],
}

impl Request {
    fn of(name: &str) -> Request {
        let mut request = Request { name: [0; 16], value: [0; 24] };
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        request
    }

    fn flags(name: &str, flags: c_int) -> Request {
        let mut request = Request::of(name);
        request.value[..2].copy_from_slice(&(flags as c_short).to_ne_bytes());
        request
    }

    fn address(name: &str, address: Ipv4Addr) -> Request {
        let mut request = Request::of(name);
        request.value[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        request.value[4..8].copy_from_slice(&address.octets());
        request
    }

    fn mtu(name: &str, bytes: c_int) -> Request {
        let mut request = Request::of(name);
        request.value[..4].copy_from_slice(&bytes.to_ne_bytes());
        request
    }

    fn ask(&mut self, of: &impl AsRawFd, what: libc::c_ulong) -> io::Result<()> {
        // SAFETY: the calls of this file read and write an `ifreq`, which this is.
        match unsafe { libc::ioctl(of.as_raw_fd(), what as _, std::ptr::from_mut(self)) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Moves this thread into a network namespace of its own, whose end of the cable has this address.
fn enter(address: Ipv4Addr) -> io::Result<File> {
    // SAFETY: the call changes the namespace of this thread alone.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    let device = options.open("/dev/net/tun")?;
    let (name, up) = ("cable", libc::IFF_UP | libc::IFF_RUNNING);
    Request::flags(name, libc::IFF_TUN | libc::IFF_NO_PI).ask(&device, TUNSETIFF)?;
    // SAFETY: the call makes a socket that nobody else knows.
    let socket =
        match unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) } {
            // SAFETY: as above.
            descriptor @ 0.. => unsafe { OwnedFd::from_raw_fd(descriptor) },
            _ => return Err(io::Error::last_os_error()),
        };
    let mask = Ipv4Addr::new(255, 255, 255, 0);
    for (mut request, what) in [
        (Request::address(name, address), libc::SIOCSIFADDR),
        (Request::address(name, mask), libc::SIOCSIFNETMASK),
        (Request::mtu(name, 1500), libc::SIOCSIFMTU),
        (Request::flags(name, up), libc::SIOCSIFFLAGS),
        (Request::flags("lo", up), libc::SIOCSIFFLAGS),
    ] {
        request.ask(&socket, what)?;
    }
    Ok(device)
}

/// What happens to packets.
#[derive(Clone, Copy)]
pub(crate) struct Wire {
    pub(crate) delay: Duration,
    /// Packets lost of a thousand.
    pub(crate) loss: u64,
}

/// A cable with something at both ends.
pub(crate) struct Cable {
    cut: Arc<AtomicBool>,
    ends: Arc<AtomicBool>,
    carrier: Option<JoinHandle<u64>>,
}

impl Cable {
    /// Makes the namespaces; `start` starts what lives in one, on a thread that is in it.
    pub(crate) fn lay<T: Send>(
        wire: Wire,
        start: impl Fn(usize) -> T + Sync,
    ) -> io::Result<(Cable, [T; 2])> {
        let end = |index: usize| -> io::Result<(File, T)> {
            let device = enter(ENDS[index])?;
            Ok((device, start(index)))
        };
        let ends = std::thread::scope(|scope| {
            [0, 1].map(|index| {
                let end = &end;
                scope.spawn(move || end(index)).join().expect("no panic")
            })
        });
        let [one, other] = ends;
        let ((one, first), (other, second)) = (one?, other?);
        let (cut, ends) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let flags = (Arc::clone(&cut), Arc::clone(&ends));
        let carrier = std::thread::spawn(move || carry([one, other], wire, flags));
        Ok((Cable { cut, ends, carrier: Some(carrier) }, [first, second]))
    }

    /// From now on nothing comes through, and nobody is told.
    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::Relaxed);
    }

    /// How many packets were lost.
    pub(crate) fn lost(mut self) -> u64 {
        self.ends.store(true, Ordering::Relaxed);
        self.carrier.take().map_or(0, |carrier| carrier.join().expect("no panic"))
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

/// Carries packets both ways; returns how many it has lost.
fn carry(mut ends: [File; 2], wire: Wire, (cut, ended): (Arc<AtomicBool>, Arc<AtomicBool>)) -> u64 {
    let mut lines = [const { std::collections::VecDeque::<(Instant, Vec<u8>)>::new() }; 2];
    let (mut lost, mut drawn, mut packet) = (0, 1u64, vec![0; 1 << 16]);
    while !ended.load(Ordering::Relaxed) {
        let mut idle = true;
        for from in 0..2 {
            match ends[from].read(&mut packet) {
                Ok(bytes) => {
                    idle = false;
                    drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let is_lost = (drawn >> 33) % 1000 < wire.loss || lines[from].len() >= LINE_MAX;
                    match is_lost || cut.load(Ordering::Relaxed) {
                        true => lost += 1,
                        false => {
                            let at = Instant::now() + wire.delay;
                            lines[from].push_back((at, packet[..bytes].to_vec()));
                        }
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("a cable ends: {error}"),
            }
            let is_due = |(at, _): &(Instant, Vec<u8>)| *at <= Instant::now();
            while lines[from].front().is_some_and(is_due) {
                idle = false;
                let (_, packet) = lines[from].pop_front().expect("the one that is due");
                // A device that takes no more loses it, as a real one does.
                let _ = ends[1 - from].write(&packet);
            }
        }
        if idle {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    lost
}
