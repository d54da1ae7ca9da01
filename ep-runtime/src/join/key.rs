//! Message codes that only the members of a group can make, under a key derived from the secret.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Bytes of a code.
pub(super) const CODE_BYTES: usize = 32;

/// Makes and checks codes. Nothing of it ever leaves the process.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Key([u8; 32]);

impl Key {
    /// The key of the group with this secret and name: the same secret gives another group, at
    /// another address or of another job, another key.
    pub(super) fn of_group(secret: &[u8; 16], name: &str) -> Key {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(secret);
        Key(bytes).derive("group", &[name.as_bytes()])
    }

    /// A key for one purpose alone.
    pub(super) fn derive(&self, purpose: &str, parts: &[&[u8]]) -> Key {
        Key(self.code(purpose, parts))
    }

    /// The code of these parts. `purpose` keeps a code from serving as one of another kind.
    pub(super) fn code(&self, purpose: &str, parts: &[&[u8]]) -> [u8; CODE_BYTES] {
        self.fed(purpose, parts).finalize().into_bytes().into()
    }

    /// Whether `code` is that of these parts, in a time that does not tell how much of it is right.
    pub(super) fn verifies(&self, code: &[u8], purpose: &str, parts: &[&[u8]]) -> bool {
        self.fed(purpose, parts).verify_slice(code).is_ok()
    }

    fn fed(&self, purpose: &str, parts: &[&[u8]]) -> Hmac<Sha256> {
        // A key shorter than a block counts as one that zeros follow.
        let mut block = [0; 64];
        block[..32].copy_from_slice(&self.0);
        let mut hmac = Hmac::<Sha256>::new(&block.into());
        for part in [purpose.as_bytes()].iter().chain(parts) {
            hmac.update(&(part.len() as u64).to_le_bytes());
            hmac.update(part);
        }
        hmac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test case 2 of RFC 4231, by way of the padded block.
    #[test]
    fn the_code_is_that_of_the_standard() {
        let mut block = [0; 64];
        block[..4].copy_from_slice(b"Jefe");
        let mut hmac = Hmac::<Sha256>::new(&block.into());
        hmac.update(b"what do ya want for nothing?");
        let code: [u8; CODE_BYTES] = hmac.finalize().into_bytes().into();
        assert_eq!(code[..8], [0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e]);
    }

    #[test]
    fn every_part_counts() {
        let key = Key::of_group(&[7; 16], "127.0.0.1:4000");
        let code = key.code("frame", &[b"ab", b"c"]);
        assert!(key.verifies(&code, "frame", &[b"ab", b"c"]));
        assert!(!key.verifies(&code, "frame", &[b"a", b"bc"]));
        assert!(!key.verifies(&code, "caller", &[b"ab", b"c"]));
        assert!(!key.verifies(&code[..31], "frame", &[b"ab", b"c"]));
        for other in [
            Key::of_group(&[8; 16], "127.0.0.1:4000"),
            Key::of_group(&[7; 16], "127.0.0.1:4001"),
            key.derive("frame", &[]),
        ] {
            assert!(!other.verifies(&code, "frame", &[b"ab", b"c"]));
        }
    }
}
