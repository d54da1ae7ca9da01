//! A sum of sparse vectors: each rank sends its elements with their indices, and adds up those of all ranks.

use super::by_hand::ByHand;
use ep_runtime::pipeline;

pipeline! {
    /// Adds up vectors of which each rank has some elements.
    pub pipeline SparseSum {
        shape { ranks: 1..=64, width: 1..=65536, max_elements: 1..=4096 }
        size elements in 0..=max_elements;
        input value: f32[elements], at: i32[elements] in 0..width;
        output total: f32[width];
        message Element { value: f32, at: i32 }
        channel parts: slots<Element> over nvlink from Send to Sum per all {
            slot: [source, place: max_elements], epochs: 2,
        };
        role Send on block 0, 1 warps {
            for element in elements {
                for peer in ranks { push parts[peer] { value: value[element], at: at[element] }; }
            }
            close parts;
        }
        role Sum on block 1, 1 warps {
            for source in ranks {
                for part in parts[source] { add total[part.at] = part.value; }
            }
        }
    }
}

/// Elements 1 and 2 of rank 0, and element 2 of rank 1.
pub(super) fn by_hand() -> ByHand {
    let total = [0.0, 1.5, 5.0];
    ByHand::of::<SparseSum>(&[("ranks", 2), ("width", 3), ("max_elements", 2)])
        .rank(|rank| {
            rank.size("elements", 2)
                .give("value", [2], [1.5, 2.0])
                .give("at", [2], [1, 2])
                .want("total", total)
        })
        .rank(|rank| {
            rank.size("elements", 1)
                .give("value", [1], [3.0])
                .give("at", [1], [2])
                .want("total", total)
        })
}
