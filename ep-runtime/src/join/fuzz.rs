//! Whatever a stranger sends, and whatever a member that is broken sends, is refused without a panic.

use std::io;

use ep_fuzz::Target;

use super::handshake::Hearing;
use super::key::Key;
use super::room::Talk;
use super::{UniqueId, answer, link};

fn run(name: &str, seeds: &[&[u8]], check: impl Fn(&[u8]) -> String) {
    let words =
        ["epforge2", "ok", "order", "lost", "missing", "failed", "127.0.0.1:1/", "[::1]:1/"];
    Target { name, seeds: seeds.iter().map(|seed| seed.to_vec()).collect(), words: &words }
        .run(check);
}

/// No bytes without the key get through the handshake.
#[test]
fn messages_of_callers() {
    let key = Key::of_group(&[7; 16], "fuzz");
    run("join-callers", &[b"epforge2", &[0; 80]], |input| {
        let mut hearing = Hearing::new(&key).unwrap();
        let mut rest = input;
        loop {
            let wanted = Talk::<io::Sink>::wants(&hearing);
            let Some((message, after)) = rest.split_at_checked(wanted) else {
                return format!("wants {wanted}");
            };
            match hearing.hear(&mut io::sink(), message) {
                Ok(None) => rest = after,
                Ok(Some(_)) => panic!("a stranger got in"),
                Err(why) => return why,
            }
        }
    });
}

/// Whatever rank 0 answers is as many values as ranks, or an error.
#[test]
fn answers_of_rank_0() {
    let payload = |parts: &[&[u8]]| {
        let with_length = |part: &&[u8]| [&(part.len() as u32).to_le_bytes(), *part].concat();
        parts.iter().flat_map(with_length).collect::<Vec<u8>>()
    };
    let seeds = [
        payload(&[b"ok", b"a", b"", b"c"]),
        payload(&[b"order", b"1", b"map", b"leave"]),
        payload(&[b"lost", b"2"]),
        payload(&[b"missing", b"1500", b"0", b"", b"2", b"load"]),
        payload(&[b"failed", b"why"]),
    ];
    let seeds: Vec<&[u8]> = seeds.iter().map(Vec::as_slice).collect();
    run("join-answers", &seeds, |input| {
        let Some(parts) = link::parts(input) else { return "no parts".to_string() };
        let count = parts.len().min(9);
        let result = answer::decode(parts, 3);
        if let Ok(all) = &result {
            assert_eq!(all.len(), 3);
        }
        let first = result.as_ref().err().map_or("ok".to_string(), ToString::to_string);
        let kind: String =
            first.chars().filter(|letter| letter.is_ascii_lowercase()).take(12).collect();
        format!("{count} {kind}")
    });
}

/// An id that is read is written as it was meant.
#[test]
fn texts_of_ids() {
    let secret = "00112233445566778899aabbccddeeff";
    let seeds = ["127.0.0.1:4000", "[::1]:65535"].map(|address| format!("{address}/{secret}/job"));
    run("join-ids", &[seeds[0].as_bytes(), seeds[1].as_bytes()], |input| {
        let text = String::from_utf8_lossy(input);
        match text.parse::<UniqueId>() {
            Ok(id) => {
                assert_eq!(id.to_string().parse(), Ok(id.clone()));
                format!("{}", id.address().is_ipv6())
            }
            Err(error) => error.to_string(),
        }
    });
}
