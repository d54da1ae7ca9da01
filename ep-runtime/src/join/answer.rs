//! Rank 0's answer to a gather: `ok` and the bytes of every rank, or the error that all ranks get.

use std::time::Duration;

use super::JoinError;

/// The parts of an answer.
pub(super) fn encode(result: &Result<Vec<Vec<u8>>, JoinError>) -> Vec<Vec<u8>> {
    let text = |word: &str| word.as_bytes().to_vec();
    match result {
        Ok(all) => [text("ok")].into_iter().chain(all.iter().cloned()).collect(),
        Err(JoinError::Order { rank, does, root_does }) => {
            vec![text("order"), text(&rank.to_string()), text(does), text(root_does)]
        }
        Err(JoinError::Lost { rank }) => vec![text("lost"), text(&rank.to_string())],
        Err(JoinError::Missing { ranks, waited, doing }) => {
            let millis = waited.as_millis().to_string();
            let said = |rank: &usize| doing.iter().find(|(of, _)| of == rank);
            let ranks = ranks.iter().flat_map(|rank| {
                [text(&rank.to_string()), text(said(rank).map_or("", |(_, what)| what))]
            });
            [text("missing"), text(&millis)].into_iter().chain(ranks).collect()
        }
        Err(other) => vec![text("failed"), text(&other.to_string())],
    }
}

/// What the answer of a group of `ranks` says; an answer that is none is an error of its own.
pub(super) fn decode(parts: Vec<Vec<u8>>, ranks: usize) -> Result<Vec<Vec<u8>>, JoinError> {
    if parts.first().is_some_and(|word| word == b"ok") {
        return match parts.len() - 1 {
            brought if brought == ranks => Ok(parts.into_iter().skip(1).collect()),
            brought => Err(wrong(&format!("{brought} values for {ranks} ranks"))),
        };
    }
    let words: Vec<_> = parts.iter().map(|part| String::from_utf8_lossy(part)).collect();
    let words: Vec<&str> = words.iter().map(|word| word.as_ref()).collect();
    Err(refusal(&words, ranks).unwrap_or_else(|| wrong(&format!("`{}`", words.join(" ")))))
}

/// The error that an answer names; none if it names none.
fn refusal(words: &[&str], ranks: usize) -> Option<JoinError> {
    let rank = |word: &str| word.parse().ok().filter(|rank: &usize| *rank < ranks);
    Some(match words {
        ["order", of, does, root_does] => JoinError::Order {
            rank: rank(of)?,
            does: (*does).to_string(),
            root_does: (*root_does).to_string(),
        },
        ["lost", of] => JoinError::Lost { rank: rank(of)? },
        ["missing", millis, rest @ ..] if rest.len() % 2 == 0 => {
            let named = rest.chunks_exact(2).map(|pair| Some((rank(pair[0])?, pair[1])));
            let named = named.collect::<Option<Vec<(usize, &str)>>>()?;
            let doing = named.iter().filter(|(_, what)| !what.is_empty());
            JoinError::Missing {
                ranks: named.iter().map(|(rank, _)| *rank).collect(),
                waited: Duration::from_millis(millis.parse().ok()?),
                doing: doing.map(|(rank, what)| (*rank, (*what).to_string())).collect(),
            }
        }
        ["failed", why] => {
            JoinError::Socket { during: "gather at rank 0", reason: (*why).to_string() }
        }
        _ => return None,
    })
}

fn wrong(what: &str) -> JoinError {
    JoinError::Socket { during: "gather", reason: format!("rank 0 answers with {what}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(words: &[&str]) -> Vec<Vec<u8>> {
        words.iter().map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn answers_survive_the_way() {
        let waited = Duration::from_millis(1500);
        for result in [
            Ok(parts(&["a", "", "c"])),
            Err(JoinError::Lost { rank: 2 }),
            Err(JoinError::Order { rank: 1, does: "map".into(), root_does: "leave".into() }),
            Err(JoinError::Missing { ranks: vec![0, 2], waited, doing: vec![(2, "load".into())] }),
        ] {
            assert_eq!(decode(encode(&result), 3), result);
        }
        let other = JoinError::Socket { during: "set a deadline", reason: "no".into() };
        let heard = decode(encode(&Err(other)), 3).unwrap_err();
        assert_eq!(heard.to_string(), "gather at rank 0: set a deadline: no");
    }

    #[test]
    fn an_answer_with_the_wrong_number_of_values_is_refused() {
        for (words, said) in [
            (&["ok", "a", "b"][..], "gather: rank 0 answers with 2 values for 3 ranks"),
            (&["ok", "a", "b", "c", "d"], "gather: rank 0 answers with 4 values for 3 ranks"),
            (&["lost", "3"], "gather: rank 0 answers with `lost 3`"),
            (&["missing", "x"], "gather: rank 0 answers with `missing x`"),
            (&["missing", "1", "0"], "gather: rank 0 answers with `missing 1 0`"),
            (&["order", "1", "map"], "gather: rank 0 answers with `order 1 map`"),
            (&[], "gather: rank 0 answers with ``"),
        ] {
            assert_eq!(decode(parts(words), 3).unwrap_err().to_string(), said);
        }
    }
}
