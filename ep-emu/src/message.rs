//! Results as they travel from a worker to its parent.

use crate::failure::{Failure, FailureKind, RunStats, Wait, WaitSite};

/// Between the parts of a message, and between the texts of one; no report contains them.
const BREAK: char = '\u{3}';
const WITHIN: char = '\u{4}';

/// Numbers, or the parts of a failure: kind, seed, whether it drained, message, how many waits, those
/// waits, and the waits in `left`.
pub(crate) fn encode(result: &Result<RunStats, Failure>) -> Vec<u8> {
    let mut parts = Vec::new();
    match result {
        Ok(stats) => {
            parts.push("ok".to_owned());
            parts.extend(fields(stats).iter().map(u64::to_string));
        }
        Err(failure) => {
            parts.push("failed".to_owned());
            parts.push(failure.kind.name().to_owned());
            parts.push(failure.seed.to_string());
            parts.push(u8::from(failure.drained).to_string());
            parts.push(failure.message.clone());
            parts.push(failure.waits.len().to_string());
            parts.extend(failure.waits.iter().chain(&failure.left).map(encode_wait));
        }
    }
    parts.join(&BREAK.to_string()).into_bytes()
}

/// The result that `encode` was given; a broken message is a crash of the worker.
pub(crate) fn decode(bytes: &[u8]) -> Result<RunStats, Failure> {
    let text = String::from_utf8_lossy(bytes);
    let parts: Vec<&str> = text.split(BREAK).collect();
    match parts.as_slice() {
        ["ok", numbers @ ..] => decode_stats(numbers).ok_or_else(|| broken(&text)),
        ["failed", kind, seed, drained, message, count, waits @ ..] => {
            let kind = FailureKind::named(kind).unwrap_or(FailureKind::Crash);
            let (waits, left) = waits.split_at(waits.len().min(count.parse().unwrap_or(0)));
            let decoded =
                |waits: &[&str]| waits.iter().filter_map(|wait| decode_wait(wait)).collect();
            Err(Failure {
                seed: seed.parse().unwrap_or(0),
                drained: *drained == "1",
                waits: decoded(waits),
                left: decoded(left),
                ..Failure::new(kind, (*message).to_owned())
            })
        }
        _ => Err(broken(&text)),
    }
}

fn broken(text: &str) -> Failure {
    Failure::new(FailureKind::Crash, format!("the worker answered {text:?}"))
}

fn encode_wait(wait: &Wait) -> String {
    let Wait { rank, block, warp, lanes, site, what, place, met } = wait;
    let met = u8::from(*met);
    let site = match site {
        Some(WaitSite { pipeline, role, channel, kind, stripe, peer, want, epoch }) => {
            format!("1 {pipeline} {role} {channel} {kind} {stripe} {peer} {want} {epoch}")
        }
        None => "0 0 0 0 0 0 0 0 0".to_owned(),
    };
    format!("{rank} {block} {warp} {lanes} {met} {site} {what}{WITHIN}{place}")
}

fn decode_wait(text: &str) -> Option<Wait> {
    let words: Vec<&str> = text.splitn(15, ' ').collect();
    let numbers: Option<Vec<i64>> = words.iter().take(14).map(|word| word.parse().ok()).collect();
    let [
        rank,
        block,
        warp,
        lanes,
        met,
        named,
        pipeline,
        role,
        channel,
        kind,
        stripe,
        peer,
        want,
        epoch,
    ] = numbers?[..]
    else {
        return None;
    };
    let site = WaitSite {
        pipeline: pipeline as u32,
        role: role as u32,
        channel: channel as u32,
        kind: kind as u32,
        stripe: stripe as i32,
        peer: peer as i32,
        want: want as u32,
        epoch: epoch as u32,
    };
    let (what, place) = words.get(14)?.split_once(WITHIN)?;
    Some(Wait {
        rank: rank as u32,
        block: block as u32,
        warp: warp as u32,
        lanes: lanes as u32,
        site: (named == 1).then_some(site),
        what: what.to_owned(),
        place: place.to_owned(),
        met: met == 1,
    })
}

fn decode_stats(numbers: &[&str]) -> Option<RunStats> {
    let numbers: Option<Vec<u64>> = numbers.iter().map(|word| word.parse().ok()).collect();
    let [lanes, steps, switches, collectives, polls, bulk_steps, idle, schedule, clock_ns] =
        numbers?[..]
    else {
        return None;
    };
    Some(RunStats {
        lanes,
        steps,
        switches,
        collectives,
        polls,
        bulk_steps,
        idle,
        schedule,
        clock_ns,
    })
}

fn fields(stats: &RunStats) -> [u64; 9] {
    [
        stats.lanes,
        stats.steps,
        stats.switches,
        stats.collectives,
        stats.polls,
        stats.bulk_steps,
        stats.idle,
        stats.schedule,
        stats.clock_ns,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_survive_the_way() {
        let stats = RunStats { lanes: 3, schedule: u64::MAX, clock_ns: 9, ..RunStats::default() };
        assert_eq!(decode(&encode(&Ok(stats.clone()))).expect("good"), stats);
        let site = WaitSite {
            pipeline: 9,
            role: 1,
            channel: 2,
            kind: 3,
            stripe: -1,
            peer: 4,
            want: 6,
            epoch: 5,
        };
        let wait = |site, what: &str| Wait {
            rank: 1,
            block: 2,
            warp: 3,
            lanes: u32::MAX,
            site,
            what: what.to_owned(),
            place: "at x.cu:3".to_owned(),
            met: site.is_none(),
        };
        let failure = Failure {
            seed: 7,
            drained: true,
            waits: vec![wait(Some(site), "polls a word"), wait(None, "barrier 1")],
            left: vec![wait(None, "barrier 2")],
            ..Failure::new(FailureKind::Race, "a\nb".to_owned())
        };
        let back = decode(&encode(&Err(failure.clone()))).expect_err("bad");
        assert_eq!((back.kind, back.seed, back.drained), (FailureKind::Race, 7, true));
        assert_eq!((back.message.as_str(), &back.waits), ("a\nb", &failure.waits));
        assert_eq!(back.left, failure.left);
        assert_eq!(decode(b"nonsense").expect_err("bad").kind, FailureKind::Crash);
    }
}
