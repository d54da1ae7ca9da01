//! A connection between two ranks that have proved themselves. Every frame carries a code under the session
//! key, so nobody can change, repeat, drop or add a frame unnoticed.
//!
//! ```text
//! frame    bytes of the payload, payload, code of {place in the stream, payload}
//! payload  parts, each with its bytes before it
//! ```

use std::io;
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

use super::key::{CODE_BYTES, Key};
use super::timed;

/// Bytes of a length.
const LENGTH: usize = 4;

/// One end of a connection.
pub(super) struct Link {
    stream: TcpStream,
    sends: Direction,
    hears: Direction,
    /// What has come of the next frame: a wait that ends in the middle of one loses nothing.
    inbox: Vec<u8>,
}

/// Frames one way.
struct Direction {
    key: Key,
    frames: u64,
}

impl Direction {
    /// The place of the next frame.
    fn next(&mut self) -> [u8; 8] {
        let frames = self.frames;
        self.frames += 1;
        frames.to_le_bytes()
    }

    fn code(&mut self, payload: &[u8]) -> [u8; CODE_BYTES] {
        let place = self.next();
        self.key.code("frame", &[&place, payload])
    }

    fn verifies(&mut self, code: &[u8], payload: &[u8]) -> bool {
        let place = self.next();
        self.key.verifies(code, "frame", &[&place, payload])
    }
}

impl Link {
    /// The end of rank 0, or that of the caller, of the session with this key.
    pub(super) fn new(stream: TcpStream, session: &Key, is_root: bool) -> Link {
        let direction = |from: &str| Direction { key: session.derive(from, &[]), frames: 0 };
        let (root, caller) = (direction("from the root"), direction("from the caller"));
        let (sends, hears) = if is_root { (root, caller) } else { (caller, root) };
        Link { stream, sends, hears, inbox: Vec::new() }
    }

    /// Sends parts as one frame. After a failure the other end hears no more: it may have half of
    /// one.
    pub(super) fn send(&mut self, parts: &[&[u8]], until: Instant) -> io::Result<()> {
        let mut payload = Vec::new();
        for part in parts {
            payload.extend(length(part.len())?);
            payload.extend_from_slice(part);
        }
        let mut frame = length(payload.len())?.to_vec();
        let code = self.sends.code(&payload);
        frame.append(&mut payload);
        frame.extend(code);
        timed::write(&mut self.stream, &frame, until).inspect_err(|_| {
            // It may be closed already.
            let _ = self.stream.shutdown(Shutdown::Both);
        })
    }

    /// The parts of the next frame, whose payload has at most `most` bytes.
    pub(super) fn receive(&mut self, most: usize, until: Instant) -> io::Result<Vec<Vec<u8>>> {
        self.fill(LENGTH, until)?;
        let bytes = number(&self.inbox).unwrap_or(usize::MAX);
        if bytes > most {
            return Err(invalid("a frame is longer than any of this group"));
        }
        self.fill(LENGTH + bytes + CODE_BYTES, until)?;
        let frame = std::mem::take(&mut self.inbox);
        let (payload, code) = frame[LENGTH..].split_at(bytes);
        if !self.hears.verifies(code, payload) {
            return Err(invalid("a frame does not carry the code of this session"));
        }
        parts(payload).ok_or_else(|| invalid("the parts of a frame do not have their lengths"))
    }

    /// Reads until the inbox has `bytes` bytes, and takes memory only as they come.
    fn fill(&mut self, bytes: usize, until: Instant) -> io::Result<()> {
        let mut some = [0; 4096];
        while self.inbox.len() < bytes {
            let most = some.len().min(bytes - self.inbox.len());
            let read = timed::read_some(&mut self.stream, &mut some[..most], until)?;
            self.inbox.extend_from_slice(&some[..read]);
        }
        Ok(())
    }

    /// Whether the other end has closed the connection.
    pub(super) fn is_gone(&self) -> bool {
        if self.stream.set_nonblocking(true).is_err() {
            return true;
        }
        let gone = match self.stream.peek(&mut [0]) {
            Ok(bytes) => bytes == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        };
        self.stream.set_nonblocking(false).is_err() || gone
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn length(bytes: usize) -> io::Result<[u8; LENGTH]> {
    let bytes = u32::try_from(bytes).map_err(|_| invalid("a frame of 4 GiB"))?;
    Ok(bytes.to_le_bytes())
}

/// The number that `bytes` begin with.
fn number(bytes: &[u8]) -> Option<usize> {
    let bytes: [u8; LENGTH] = bytes.get(..LENGTH)?.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(bytes)).ok()
}

/// The parts of a payload; none if their lengths do not add up.
pub(super) fn parts(mut payload: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut parts = Vec::new();
    while !payload.is_empty() {
        let bytes = number(payload)?;
        let (part, rest) = payload[LENGTH..].split_at_checked(bytes)?;
        parts.push(part.to_vec());
        payload = rest;
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Duration;

    use super::super::clock::stopped::held;
    use super::*;

    /// When a test that hangs fails.
    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener.accept().unwrap().0, caller)
    }

    fn session() -> Key {
        Key::of_group(&[7; 16], "test")
    }

    /// Both ends, and everything in between in the hands of `meddle`: it gets each frame of the caller
    /// and says what reaches the root.
    fn through(
        meddle: impl FnOnce(Vec<Vec<u8>>) -> Vec<u8>,
        sent: &[&[&[u8]]],
    ) -> (Vec<Vec<Vec<u8>>>, Option<io::Error>) {
        let (mut middle, caller) = connected();
        let mut caller = Link::new(caller, &session(), false);
        let mut frames = Vec::new();
        for parts in sent {
            caller.send(parts, soon()).unwrap();
            let payload: usize = parts.iter().map(|part| LENGTH + part.len()).sum();
            let mut frame = vec![0; LENGTH + payload + CODE_BYTES];
            middle.read_exact(&mut frame).unwrap();
            frames.push(frame);
        }
        let (root, mut middle) = connected();
        middle.write_all(&meddle(frames)).unwrap();
        drop(middle);
        let mut root = Link::new(root, &session(), true);
        let mut heard = Vec::new();
        loop {
            match root.receive(1 << 10, soon()) {
                Ok(parts) => heard.push(parts),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return (heard, None),
                Err(error) => return (heard, Some(error)),
            }
        }
    }

    #[test]
    fn frames_arrive_as_they_are() {
        let sent: [&[&[u8]]; 3] = [&[b"one", b""], &[], &[b"two"]];
        let (heard, error) = through(|frames| frames.concat(), &sent);
        assert!(error.is_none());
        assert_eq!(heard, [vec![b"one".to_vec(), Vec::new()], Vec::new(), vec![b"two".to_vec()]]);
    }

    #[test]
    fn what_somebody_on_the_way_does_is_noticed() {
        let sent: [&[&[u8]]; 2] = [&[b"one"], &[b"two"]];
        let code = "a frame does not carry the code of this session";
        let noticed = |meddle: fn(Vec<Vec<u8>>) -> Vec<u8>, heard: usize| {
            let (all, error) = through(meddle, &sent);
            assert_eq!((all.len(), error.unwrap().to_string()), (heard, code.to_string()));
        };
        // Changed, dropped, repeated, exchanged.
        noticed(
            |mut frames| {
                frames[0][9] ^= 1;
                frames.concat()
            },
            0,
        );
        noticed(|frames| frames[1].clone(), 0);
        noticed(|frames| [&frames[0][..], &frames[0]].concat(), 1);
        noticed(|frames| [&frames[1][..], &frames[0]].concat(), 0);
    }

    /// A frame of the root is none of the caller: nobody can send back to a rank what it said.
    #[test]
    fn a_frame_that_comes_back_is_refused() {
        let (mut far, caller) = connected();
        let mut caller = Link::new(caller, &session(), false);
        caller.send(&[b"one"], soon()).unwrap();
        let mut frame = vec![0; LENGTH + LENGTH + 3 + CODE_BYTES];
        far.read_exact(&mut frame).unwrap();
        far.write_all(&frame).unwrap();
        assert!(caller.receive(1 << 10, soon()).is_err());
    }

    #[test]
    fn a_length_is_no_allocation() {
        let (mut far, caller) = connected();
        let mut caller = Link::new(caller, &session(), false);
        far.write_all(&u32::MAX.to_le_bytes()).unwrap();
        let error = caller.receive(1 << 10, soon()).unwrap_err();
        assert_eq!(error.to_string(), "a frame is longer than any of this group");
    }

    #[test]
    fn a_wait_that_ends_in_a_frame_loses_nothing() {
        let (root, mut middle) = connected();
        let mut root = Link::new(root, &session(), true);
        let (mut far, caller) = connected();
        Link::new(caller, &session(), false).send(&[b"one"], soon()).unwrap();
        let mut frame = vec![0; LENGTH + LENGTH + 3 + CODE_BYTES];
        far.read_exact(&mut frame).unwrap();
        middle.write_all(&frame[..20]).unwrap();
        let error = root.receive(1 << 10, Instant::now() + Duration::from_millis(50)).unwrap_err();
        assert!(timed::is_timeout(&error), "{error}");
        middle.write_all(&frame[20..]).unwrap();
        assert_eq!(root.receive(1 << 10, soon()).unwrap(), [b"one"]);
    }

    #[test]
    fn a_reader_that_reads_nothing_holds_no_sender() {
        let (far, caller) = connected();
        let _held = held(far);
        let mut caller = Link::new(caller, &session(), false);
        let until = Instant::now() + Duration::from_secs(2);
        let error = caller.send(&[&vec![0; 16 << 20]], until).unwrap_err();
        assert!(timed::is_timeout(&error), "{error}");
        assert!(caller.is_gone(), "it has been shut down");
    }
}
