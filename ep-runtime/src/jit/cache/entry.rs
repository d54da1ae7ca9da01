//! The file format of one entry: a header of text lines, then the log and the binary.

use sha2::{Digest, Sha256};

use super::{Key, Summary};

/// A compiled result, as the cache stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The source that was compiled.
    pub name: String,
    /// The target, such as `sm_90a`.
    pub target: String,
    /// The compiler, such as `NVRTC 13.5`.
    pub tool: String,
    /// The compiler's log.
    pub log: String,
    /// The machine code.
    pub binary: Vec<u8>,
}

/// The first line; a change of the format changes its number, and older entries are made anew.
const MAGIC: &[u8] = b"epforge cache entry 1\n";

/// The digits of a SHA-256 and the end of its line.
const DIGEST_LINE: usize = 65;

impl Entry {
    pub(super) fn summary(&self) -> Summary {
        let Entry { name, target, tool, .. } = self.clone();
        Summary { name, target, tool }
    }

    /// The bytes of the file of `key`.
    pub(super) fn to_bytes(&self, key: &Key) -> Vec<u8> {
        let mut body = Vec::with_capacity(self.binary.len() + self.log.len() + 512);
        for part in self.parts() {
            body.extend_from_slice(format!("{}\n", part.len()).as_bytes());
            body.extend_from_slice(part);
            body.push(b'\n');
        }
        let mut file = MAGIC.to_vec();
        file.extend_from_slice(digest(key, &body).as_bytes());
        file.push(b'\n');
        file.append(&mut body);
        file
    }

    fn parts(&self) -> [&[u8]; 5] {
        let Entry { name, target, tool, log, binary } = self;
        [name.as_bytes(), target.as_bytes(), tool.as_bytes(), log.as_bytes(), binary]
    }

    /// Reads the file of `key`; the error says in a clause what is wrong with it.
    pub(super) fn from_bytes(key: &Key, file: &[u8]) -> Result<Entry, String> {
        let rest = file.strip_prefix(MAGIC).ok_or("its beginning is not that of an entry")?;
        let (line, mut body) =
            rest.split_at_checked(DIGEST_LINE).ok_or("it ends before its digest does")?;
        if line != format!("{}\n", digest(key, body)).as_bytes() {
            return Err("its contents do not match its digest".to_owned());
        }
        let mut text = || String::from_utf8(part(&mut body)?.to_owned()).ok();
        let (name, target, tool, log) = (text(), text(), text(), text());
        let binary = part(&mut body).map(<[u8]>::to_vec);
        match (name, target, tool, log, binary) {
            (Some(name), Some(target), Some(tool), Some(log), Some(binary)) if body.is_empty() => {
                Ok(Entry { name, target, tool, log, binary })
            }
            _ => Err("the lengths of its parts are wrong".to_owned()),
        }
    }
}

/// Covers the key too: a good entry under the name of another one is a wrong kernel.
fn digest(key: &Key, body: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update(key.0);
    hash.update(body);
    Key(hash.finalize().into()).to_string()
}

fn part<'a>(body: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = body.iter().position(|byte| *byte == b'\n')?;
    let length: usize = std::str::from_utf8(&body[..end]).ok()?.parse().ok()?;
    let (part, rest) = body[end + 1..].split_at_checked(length)?;
    *body = rest.strip_prefix(b"\n")?;
    Some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            name: "two\nlines".to_owned(),
            target: "sm_90a".to_owned(),
            tool: "NVRTC 13.5".to_owned(),
            log: String::new(),
            binary: vec![0, 10, 255, 10],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let key = Key::of(["k"]);
        assert_eq!(Entry::from_bytes(&key, &entry().to_bytes(&key)), Ok(entry()));
    }

    #[test]
    fn every_changed_bit_and_every_cut_is_noticed() {
        let key = Key::of(["k"]);
        let file = entry().to_bytes(&key);
        for index in 0..file.len() {
            let mut changed = file.clone();
            changed[index] ^= 1;
            assert!(Entry::from_bytes(&key, &changed).is_err(), "byte {index}");
            assert!(Entry::from_bytes(&key, &file[..index]).is_err(), "cut at {index}");
        }
        assert!(Entry::from_bytes(&Key::of(["other"]), &file).is_err());
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        let key = Key::of(["k"]);
        for body in ["99999999999999999999\n", "5\nab\n", "2\nab", "-1\n\n", ""] {
            let mut file = MAGIC.to_vec();
            file.extend_from_slice(format!("{}\n", digest(&key, body.as_bytes())).as_bytes());
            file.extend_from_slice(body.as_bytes());
            assert!(Entry::from_bytes(&key, &file).is_err(), "{body:?}");
        }
    }

    /// Whatever lies in the folder: it is an entry, which survives being written again, or it is
    /// refused with a clause. Half of the inputs get the right digest, to reach what is behind it.
    #[test]
    fn fuzzed_files() {
        let key = Key::of(["k"]);
        let file = entry().to_bytes(&key);
        let body = file[MAGIC.len() + DIGEST_LINE..].to_vec();
        let seeds = vec![[b"\0".as_slice(), &file].concat(), [b"\x01".as_slice(), &body].concat()];
        let words = ["epforge cache entry 1\n", "0\n\n", "1\nx\n", "18446744073709551615\n"];
        let target = ep_fuzz::Target { name: "cache-entries", seeds, words: &words };
        target.run(|input| {
            let Some((kind, rest)) = input.split_first() else { return String::new() };
            let file = match kind & 1 {
                0 => rest.to_vec(),
                _ => [MAGIC, digest(&key, rest).as_bytes(), b"\n", rest].concat(),
            };
            match Entry::from_bytes(&key, &file) {
                Ok(entry) => {
                    assert_eq!(Entry::from_bytes(&key, &entry.to_bytes(&key)), Ok(entry.clone()));
                    format!("{} {}", entry.log.len().min(4), entry.binary.len().min(4))
                }
                Err(reason) => reason,
            }
        });
    }
}
