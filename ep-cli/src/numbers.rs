//! Numbers of the command line: each option says what it takes, and nothing else gets in.

/// The most that anything is counted to.
const MOST: usize = 1_000_000_000;

/// The longest wait of a kernel, in milliseconds: a day.
const LONGEST_MS: u64 = 24 * 3600 * 1000;

/// How many of something there are.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number <= MOST);
    number.ok_or_else(|| format!("it is not a number from 0 to {MOST}"))
}

/// How many there are at least one of.
pub(crate) fn positive(text: &str) -> Result<usize, String> {
    let number = count(text).ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("it is not a number from 1 to {MOST}"))
}

/// A time in milliseconds, which is no moment.
pub(crate) fn millis(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| (1..=LONGEST_MS).contains(number));
    number.ok_or_else(|| {
        format!("it is not a number of milliseconds from 1 to {LONGEST_MS} (one day)")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_meant_gets_in() {
        for text in ["", "-1", "1.5", "x", "1000000001", "18446744073709551616"] {
            assert!(count(text).is_err() && positive(text).is_err(), "{text}");
        }
        assert_eq!((count("0"), count("1000000000")), (Ok(0), Ok(MOST)));
        assert_eq!((positive("0").is_err(), positive("1")), (true, Ok(1)));
        assert!(millis("0").is_err() && millis("86400001").is_err() && millis("5000") == Ok(5000));
    }
}
