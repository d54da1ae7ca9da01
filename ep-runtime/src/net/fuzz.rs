//! Whatever a kernel writes into its queue, and whatever number a network brings, is carried out within the
//! memory of the group or refused; nothing panics.

use ep_fuzz::Target;

use super::endpoint::{Card, Reached};
use super::layout::{Layout, WINDOW};
use super::queue::{self, Joined, Limits, Request};
use super::stream::{Landing, Number};

const LAYOUT: Layout =
    Layout { ranks: 5, data_bytes: 4096, queues: 3, slots: 32, counters: 16, ports: 1 };

fn run(name: &str, seeds: Vec<Vec<u8>>, check: impl Fn(&[u8]) -> String) {
    Target { name, seeds, words: &["\u{1}\0\0\0", "\0\0\0\u{1}"] }.run(check);
}

/// The 64-bit words of an input.
fn words(input: &[u8]) -> impl Iterator<Item = u64> + '_ {
    input.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()))
}

/// Puts stay inside the data and signals inside the counters, alone and joined.
#[test]
fn descriptors_of_kernels() {
    let limits = Limits { ranks: 5, rank: 1, data_bytes: 4096, counters: 16 };
    let descriptor = |words: [u64; 4]| words.iter().flat_map(|it| it.to_le_bytes()).collect();
    let seeds: Vec<Vec<u8>> = vec![
        descriptor([64, 0, 1 << 32 | 2, 1 << 32 | 64]),
        descriptor([3, 0, 2 << 32 | 4, 1 << 32 | 7]),
    ];
    run("net-descriptors", vec![seeds.concat(), seeds[0].repeat(3)], |input| {
        let all: Vec<u64> = words(input).collect();
        let (mut joined, mut said, mut sum) = (Joined::new(5), String::new(), 0u64);
        for words in all.chunks_exact(4) {
            let words = [words[0], words[1], words[2], words[3]];
            let came = queue::has_come(words[3], 0, 32);
            match Request::read(&words, &limits) {
                Ok(request) => {
                    sum += bytes(&request);
                    joined.add(request);
                }
                Err(why) => {
                    let kind = |letter: &char| letter.is_ascii_alphabetic() || *letter == ' ';
                    said = format!("{came} {}", why.chars().filter(kind).collect::<String>());
                }
            }
        }
        let writes: Vec<Request> = joined.take().collect();
        assert_eq!(writes.iter().map(bytes).sum::<u64>(), sum, "no byte is lost, and none is new");
        for write in &writes {
            assert!(write.peer() < 5 && write.peer() != 1);
            match *write {
                Request::Put { to, from, bytes, .. } => {
                    assert!(to.max(from) + u64::from(bytes) <= 4096);
                }
                Request::Signal { counter, .. } => assert!(counter < 16),
            }
        }
        format!("{} {said}", writes.len())
    });
}

fn bytes(request: &Request) -> u64 {
    match request {
        Request::Put { bytes, .. } => u64::from(*bytes),
        Request::Signal { .. } => 0,
    }
}

/// Numbers in any order name what is in the network, and places that nobody can have sent are refused.
#[test]
fn numbers_of_writes() {
    let seed = |numbers: &[Number]| -> Vec<u8> {
        numbers.iter().flat_map(|it| u64::from(it.encode(4, 2)).to_le_bytes()).collect()
    };
    let seeds = vec![
        seed(&[Number::Put(1), Number::Put(0), Number::Signal(2)]),
        seed(&[Number::Landed(7), Number::Put(0), Number::Put(0)]),
    ];
    run("net-numbers", seeds, |input| {
        let mut landings = vec![Landing::default(); 15];
        let (mut counted, mut said) = (0, String::new());
        for number in words(input) {
            match Number::decode(number as u32, &LAYOUT) {
                Ok((Number::Put(place) | Number::Signal(place), source, queue)) => {
                    let is_signal = number as u32 >> 30 == 1;
                    let landing = &mut landings[LAYOUT.flow(source, queue)];
                    match landing.land(place, is_signal, |_| counted += 1) {
                        Ok(()) => assert!(landing.owed(true).is_none_or(|it| it > 0)),
                        Err(_) => said = "refused".to_string(),
                    }
                    assert!(LAYOUT.inbox(source, queue, place) < LAYOUT.pulse(0));
                }
                Ok((other, ..)) => said = format!("{other:?}").chars().take(8).collect(),
                Err(why) => said = why.chars().take(12).collect(),
            }
        }
        assert!(counted <= words(input).count().min(15 * WINDOW));
        format!("{} {said}", counted.min(4))
    });
}

/// The address of a peer is one or none.
#[test]
fn cards_of_peers() {
    let blocks = vec![Reached { first: 0, base: 1 << 40, key: 1 }];
    let card = Card { name: vec![2, 0, 1, 2, 127, 0, 0, 1], blocks };
    run("net-cards", vec![card.encode()], |input| match Card::decode(input) {
        Some(card) => {
            assert_eq!(card.encode(), input);
            card.name.len().to_string()
        }
        None => "none".to_string(),
    });
}
