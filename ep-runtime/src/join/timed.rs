//! Reads and writes that end at a deadline, however slowly the other end sends.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::clock;

/// A stream whose single reads and writes can be bounded.
pub(super) trait Timed: Read + Write {
    /// The longest that one read or write may take from now on.
    fn bound(&self, left: Duration) -> io::Result<()>;
}

impl Timed for TcpStream {
    fn bound(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left))?;
        self.set_write_timeout(Some(left))
    }
}

impl Timed for UnixStream {
    fn bound(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left))?;
        self.set_write_timeout(Some(left))
    }
}

/// What is left until a moment; an error when it has passed.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(clock::now());
    // The system takes a bound of zero for none.
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Bounds the next read or write by a moment.
pub(super) fn bound(stream: &impl Timed, until: Instant) -> io::Result<()> {
    stream.bound(left(until)?)
}

/// Reads what there is, at least a byte.
pub(super) fn read_some(
    stream: &mut impl Timed,
    bytes: &mut [u8],
    until: Instant,
) -> io::Result<usize> {
    loop {
        bound(stream, until)?;
        match stream.read(bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Reads `N` bytes.
pub(super) fn read<const N: usize>(stream: &mut impl Timed, until: Instant) -> io::Result<[u8; N]> {
    let (mut bytes, mut done) = ([0; N], 0);
    while done < N {
        done += read_some(stream, &mut bytes[done..], until)?;
    }
    Ok(bytes)
}

/// Writes all of it.
pub(super) fn write(stream: &mut impl Timed, bytes: &[u8], until: Instant) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        bound(stream, until)?;
        match stream.write(&bytes[done..]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => done += written,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether an error says that the time was up.
pub(super) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_now_and_then_does_not_move_the_end() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while theirs.write_all(&[1]).is_ok() {
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            // All of them would take 20 s.
            let until = Instant::now() + Duration::from_millis(200);
            let error = read::<1000>(&mut ours, until).unwrap_err();
            assert!(is_timeout(&error), "{error}");
            drop(ours);
        });
    }

    #[test]
    fn whoever_reads_nothing_holds_no_writer() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let _held = clock::stopped::held(theirs);
        let until = Instant::now() + Duration::from_millis(200);
        let error = write(&mut ours, &vec![0; 8 << 20], until).unwrap_err();
        assert!(is_timeout(&error), "{error}");
    }
}
