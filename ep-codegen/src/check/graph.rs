//! Circles in small directed graphs.

/// The shortest way from `start` back to itself, as nodes beginning with `start`.
pub(super) fn circle(
    start: usize,
    nodes: usize,
    next: &dyn Fn(usize) -> Vec<usize>,
) -> Option<Vec<usize>> {
    let mut from: Vec<Option<usize>> = vec![None; nodes];
    let mut wave = vec![start];
    while !wave.is_empty() {
        let mut reached = Vec::new();
        for node in wave {
            for target in next(node) {
                if target == start {
                    return Some(path(start, node, &from));
                }
                if from[target].is_none() {
                    from[target] = Some(node);
                    reached.push(target);
                }
            }
        }
        wave = reached;
    }
    None
}

fn path(start: usize, end: usize, from: &[Option<usize>]) -> Vec<usize> {
    let mut path = vec![end];
    while let Some(previous) = from[path[path.len() - 1]].filter(|_| path[path.len() - 1] != start)
    {
        path.push(previous);
    }
    path.reverse();
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_shortest_circle() {
        let edges = [vec![1, 2], vec![2], vec![3], vec![0], vec![4]];
        let next = |node: usize| edges[node].clone();
        assert_eq!(circle(0, 5, &next), Some(vec![0, 2, 3]));
        assert_eq!(circle(4, 5, &next), Some(vec![4]));
        assert_eq!(circle(1, 5, &|node| if node == 1 { vec![2] } else { vec![] }), None);
    }
}
