//! How one input comes from others.

/// Random numbers of a seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        // xorshift64*.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `end`; 0 if that is 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() >> 11) as usize % end.max(1)
    }

    /// One of a list that is not empty.
    pub(crate) fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// Numbers at which something ends.
const NUMBERS: [&str; 14] = [
    "0",
    "1",
    "-1",
    "7",
    "64",
    "65",
    "255",
    "4096",
    "2147483648",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "99999999999999999999999999",
];

/// Bytes at which something ends.
const BYTES: [u8; 8] = [0, 1, 0x7f, 0x80, 0xff, b'\n', b'"', b'}'];

/// Changes an input in one place.
pub(crate) fn change(input: &mut Vec<u8>, pool: &[Vec<u8>], words: &[&str], random: &mut Random) {
    let at = random.below(input.len() + 1);
    let to = at + random.below((input.len() - at).min(64) + 1);
    match random.below(10) {
        0 => input.truncate(at),
        1 => drop(input.drain(at..to)),
        2 => {
            let piece = input[at..to].to_vec();
            input.splice(at..at, piece);
        }
        3 => {
            let other = random.one_of(pool);
            let from = random.below(other.len() + 1);
            let piece = &other[from..from + random.below((other.len() - from).min(256) + 1)];
            input.splice(at..to, piece.iter().copied());
        }
        4 if !words.is_empty() => {
            let word = random.one_of(words).as_bytes();
            input.splice(at..to, word.iter().copied());
        }
        5 => number(input, random),
        6 => input.insert(at, *random.one_of(&BYTES)),
        7 if at < input.len() => input[at] = *random.one_of(&BYTES),
        8 => word(input, words, random),
        _ if at < input.len() => input[at] ^= 1 << random.below(8),
        _ => input.push(random.below(256) as u8),
    }
}

/// Puts another number in the place of one.
fn number(input: &mut Vec<u8>, random: &mut Random) {
    let digits: Vec<usize> = (0..input.len()).filter(|at| input[*at].is_ascii_digit()).collect();
    if digits.is_empty() {
        return;
    }
    let at = *random.one_of(&digits);
    let length = input[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let other = random.one_of(&NUMBERS).bytes();
    input.splice(at..at + length, other);
}

/// Puts a word that means something in the place of a word.
fn word(input: &mut Vec<u8>, words: &[&str], random: &mut Random) {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let begins = |at: &usize| is_word(input[*at]) && (*at == 0 || !is_word(input[*at - 1]));
    let starts: Vec<usize> = (0..input.len()).filter(begins).collect();
    if starts.is_empty() || words.is_empty() {
        return;
    }
    let at = *random.one_of(&starts);
    let length = input[at..].iter().take_while(|byte| is_word(**byte)).count();
    let other = random.one_of(words).bytes();
    input.splice(at..at + length, other);
}
