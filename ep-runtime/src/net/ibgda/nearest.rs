//! Finds the network card nearest to a GPU by their places on the PCIe bus.

use std::fs;
use std::path::{Path, PathBuf};

use crate::backend::Backend;
use crate::gpu;

/// Where the system lists network cards.
const CARDS: &str = "/sys/class/infiniband";

/// A rank that looks for a card.
#[derive(Debug, Clone, Default)]
pub(super) struct Seat {
    /// The place of its GPU; none: it has no GPU, or nobody knows.
    gpu: Option<PathBuf>,
    /// Its number among the ranks of its node.
    index: usize,
}

impl Seat {
    pub(super) fn of(backend: &dyn Backend, rank: usize) -> Seat {
        let ordinal = backend.device(rank);
        let gpu = ordinal.and_then(|ordinal| gpu::place(ordinal).ok());
        let gpu = gpu.and_then(|address| pci_place(&address));
        Seat { gpu, index: rank - backend.node().start }
    }

    /// The order in which it takes the cards of these names: the nearest first. Ranks of a node share cards that are as near
    /// as each other.
    pub(super) fn order(&self, names: &[String]) -> Vec<usize> {
        self.order_by(names, |name| {
            fs::canonicalize(Path::new(CARDS).join(name).join("device")).ok()
        })
    }

    fn order_by(&self, names: &[String], place: impl Fn(&str) -> Option<PathBuf>) -> Vec<usize> {
        let mut order: Vec<usize> = (0..names.len()).collect();
        let Some(gpu) = &self.gpu else { return order };
        let steps = |name: &String| place(name).map_or(0, |card| steps_shared(gpu, &card));
        let steps: Vec<usize> = names.iter().map(steps).collect();
        order.sort_by_key(|card| std::cmp::Reverse(steps[*card]));
        let best = order.iter().take_while(|card| steps[**card] == steps[order[0]]).count();
        if let Some(turn) = self.index.checked_rem(best) {
            order[..best].rotate_left(turn);
        }
        order
    }
}

/// The cards of this machine, by name and place.
pub(crate) fn card_places() -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(CARDS).into_iter().flatten().flatten();
    let mut cards: Vec<(String, PathBuf)> = entries
        .filter_map(|entry| {
            let place = fs::canonicalize(entry.path().join("device")).ok()?;
            Some((entry.file_name().into_string().ok()?, place))
        })
        .collect();
    cards.sort();
    cards
}

/// The cards that are nearest to the GPU with this PCI address.
pub(crate) fn nearest<'a>(address: &str, cards: &'a [(String, PathBuf)]) -> Vec<&'a str> {
    let Some(gpu) = pci_place(address) else { return Vec::new() };
    nearest_to(&gpu, cards)
}

fn nearest_to<'a>(gpu: &Path, cards: &'a [(String, PathBuf)]) -> Vec<&'a str> {
    let best = cards.iter().map(|(_, place)| steps_shared(gpu, place)).max();
    let near = cards.iter().filter(|(_, place)| Some(steps_shared(gpu, place)) == best);
    near.map(|(name, _)| name.as_str()).collect()
}

fn pci_place(address: &str) -> Option<PathBuf> {
    fs::canonicalize(Path::new("/sys/bus/pci/devices").join(address.to_lowercase())).ok()
}

/// How many bridges two devices have in common, from the root of the bus on.
fn steps_shared(one: &Path, other: &Path) -> usize {
    one.components().zip(other.components()).take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "/sys/devices/pci0000:00/0000:00:01.0";

    /// Two switches with two cards each, and one card at another root.
    fn place(name: &str) -> Option<PathBuf> {
        let at = match name {
            "mlx5_0" => "/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0".to_string(),
            "mlx5_1" | "mlx5_2" => format!("{ROOT}/0000:01:00.0/{name}"),
            "mlx5_3" | "mlx5_4" => format!("{ROOT}/0000:02:00.0/{name}"),
            _ => return None,
        };
        Some(at.into())
    }

    #[test]
    fn the_nearest_card_comes_first_and_ranks_share_those_as_near() {
        let names = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "odd"].map(str::to_string);
        let order = |gpu: &str, index: usize| {
            let seat = Seat { gpu: Some(gpu.into()), index };
            let order = seat.order_by(&names, place);
            order.into_iter().map(|card| names[card].as_str()).collect::<Vec<_>>()
        };
        let gpu = format!("{ROOT}/0000:02:00.0/0000:03:00.0");
        assert_eq!(order(&gpu, 2), ["mlx5_3", "mlx5_4", "mlx5_1", "mlx5_2", "mlx5_0", "odd"]);
        assert_eq!(order(&gpu, 3)[..2], ["mlx5_4", "mlx5_3"]);
        assert_eq!(order("/sys/devices/pci0000:80/0000:80:01.0/0000:82:00.0", 1)[0], "mlx5_0");
        // Nobody knows where the GPU is: in the order of the library.
        assert_eq!(Seat { gpu: None, index: 3 }.order_by(&names, place), [0, 1, 2, 3, 4, 5]);
        let cards = ["mlx5_0", "mlx5_3", "mlx5_4"].map(|it| (it.to_string(), place(it).unwrap()));
        assert_eq!(nearest_to(Path::new(&gpu), &cards), ["mlx5_3", "mlx5_4"]);
    }
}
