//! Whether plain pushes arrive.

use ep_runtime::error::CallError;
use ep_runtime::group::Group;
use ep_runtime::tune::{Destination, Pushes};

use crate::oracle::Differences;

/// Pushes bytes that look random once and compares what has arrived. Nothing to compare on devices
/// without bulk copies.
pub fn check_pushes(
    group: &Group,
    destination: Destination,
    bytes: u64,
) -> Result<Differences, CallError> {
    if !group.backend().arch().has_tma() || destination.peers(group.ranks()) == 0 {
        return Ok(Differences::default());
    }
    let pushes = Pushes::new(group, destination, bytes)?;
    pushes.push(2)?;
    group.local().try_for_each(|rank| group.sync(rank))?;
    group.backend().gather("all pushes are done", 0)?;
    compare(group, destination, &pushes)
}

/// What every rank has got from its peers; each of them has a region of the window.
fn compare(
    group: &Group,
    destination: Destination,
    pushes: &Pushes,
) -> Result<Differences, CallError> {
    let mut found = Differences::default();
    let mut got = vec![0; pushes.bytes() as usize];
    for rank in group.local() {
        for source in 0..group.ranks() {
            let sends = match destination {
                Destination::Others => source != rank,
                Destination::All => true,
            };
            if !sends {
                continue;
            }
            group.backend().read(rank, pushes.region(rank, source)?, &mut got)?;
            let want = pushes.sent_by(source);
            let wrong = got.iter().zip(&want).position(|(got, want)| got != want);
            found.note(wrong.is_none(), || {
                let at = wrong.unwrap_or(0);
                let (have, want) = (got[at], want[at]);
                format!("rank {rank} from {source}, byte {at}: {have:#04x}, not {want:#04x}")
            });
        }
    }
    Ok(found)
}
