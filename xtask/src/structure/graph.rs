//! The graph of calls from file to file, and its cycles.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::calls::Call;

/// The graph of a directory. Its nodes are the numbers of files.
pub(super) struct Graph {
    nodes: usize,
    /// The calls from a file to another.
    pub(super) edges: BTreeMap<(usize, usize), Vec<Call>>,
}

impl Graph {
    pub(super) fn new(nodes: usize, calls: Vec<Call>) -> Graph {
        let mut edges: BTreeMap<(usize, usize), Vec<Call>> = BTreeMap::new();
        for call in calls {
            edges.entry((call.from, call.to.file)).or_default().push(call);
        }
        Graph { nodes, edges }
    }

    /// Returns the number of calls.
    pub(super) fn calls(&self) -> usize {
        self.edges.values().map(Vec::len).sum()
    }

    /// Returns the cycles, the largest first. A cycle is a strongly connected component: files of
    /// which each reaches each other one by calls.
    pub(super) fn cycles(&self) -> Vec<BTreeSet<usize>> {
        self.cycles_without(None)
    }

    fn cycles_without(&self, left_out: Option<(usize, usize)>) -> Vec<BTreeSet<usize>> {
        let reached: Vec<BTreeSet<usize>> = (0..self.nodes).map(|from| self.reached_from(from, left_out)).collect();
        let with = |a: usize| (0..self.nodes).filter(|&b| reached[a].contains(&b) && reached[b].contains(&a)).collect();
        let mut cycles: Vec<BTreeSet<usize>> =
            (0..self.nodes).map(with).filter(|cycle: &BTreeSet<_>| cycle.len() > 1).collect();
        cycles.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        cycles.dedup();
        cycles
    }

    /// Returns the files that a file reaches by one call or more.
    fn reached_from(&self, from: usize, left_out: Option<(usize, usize)>) -> BTreeSet<usize> {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(at) = open.pop() {
            for to in self.next(at).filter(|&to| Some((at, to)) != left_out) {
                if reached.insert(to) {
                    open.push(to);
                }
            }
        }
        reached
    }

    /// Returns the files that a file calls.
    fn next(&self, from: usize) -> impl Iterator<Item = usize> + '_ {
        self.edges.range((from, 0)..=(from, usize::MAX)).map(|((_, to), _)| *to)
    }

    /// Returns a round of calls through files of `cycle`, as its edges. It is the longest among the
    /// shortest rounds through each edge, so it shows more than two files that call each other.
    pub(super) fn round(&self, cycle: &BTreeSet<usize>) -> Vec<(usize, usize)> {
        let rounds = self.inside(cycle).filter_map(|(from, to)| {
            let mut files = self.shortest(to, from)?;
            files.push(to);
            Some(files.windows(2).map(|two| (two[0], two[1])).collect::<Vec<_>>())
        });
        rounds.max_by_key(Vec::len).unwrap_or_default()
    }

    /// Returns the edges between the files of a cycle.
    fn inside<'a>(&'a self, cycle: &'a BTreeSet<usize>) -> impl Iterator<Item = (usize, usize)> + 'a {
        self.edges.keys().copied().filter(|(from, to)| cycle.contains(from) && cycle.contains(to))
    }

    /// Returns the files on a shortest way, with both ends.
    fn shortest(&self, from: usize, to: usize) -> Option<Vec<usize>> {
        let (mut before, mut open) = (BTreeMap::new(), VecDeque::from([from]));
        while let Some(at) = open.pop_front() {
            if at == to {
                let mut way = vec![at];
                while let Some(&previous) = before.get(&way[way.len() - 1]) {
                    way.push(previous);
                }
                way.reverse();
                return Some(way);
            }
            for next in self.next(at) {
                if next != from && !before.contains_key(&next) {
                    before.insert(next, at);
                    open.push_back(next);
                }
            }
        }
        None
    }

    /// Returns the edges whose removal alone makes a cycle smaller, each with the number of files
    /// in the largest cycle that is left. Those that leave the least come first, and of these the
    /// ones with the fewest calls.
    pub(super) fn weakest(&self, cycle: &BTreeSet<usize>) -> Vec<((usize, usize), usize)> {
        let left = |edge| {
            let cycles = self.cycles_without(Some(edge)).into_iter().filter(|left| left.is_subset(cycle));
            cycles.map(|left| left.len()).max().unwrap_or(1)
        };
        let mut edges: Vec<_> = self.inside(cycle).map(|edge| (edge, left(edge))).collect();
        edges.retain(|(_, left)| *left < cycle.len());
        edges.sort_by_key(|(edge, left)| (*left, self.edges[edge].len(), *edge));
        edges
    }
}

#[cfg(test)]
mod tests {
    use super::super::definitions::Function;
    use super::super::types::Known;
    use super::*;

    fn graph(nodes: usize, edges: &[(usize, usize)]) -> Graph {
        let call = |&(from, file): &(usize, usize)| {
            let to = Function { file, name: "called".into(), output: Known::Unknown };
            Call { from, caller: "caller".into(), line: 1, to }
        };
        Graph::new(nodes, edges.iter().map(call).collect())
    }

    #[test]
    fn cycles_are_found_and_the_largest_comes_first() {
        let graph = graph(8, &[(0, 1), (1, 0), (1, 2), (2, 3), (3, 4), (4, 2), (4, 5), (6, 7), (6, 7)]);
        assert_eq!(graph.cycles(), [BTreeSet::from([2, 3, 4]), BTreeSet::from([0, 1])]);
        assert_eq!((graph.edges.len(), graph.calls()), (8, 9));
    }

    #[test]
    fn a_directory_without_cycles_has_none() {
        assert!(graph(4, &[(0, 1), (0, 2), (1, 3), (2, 3)]).cycles().is_empty());
    }

    #[test]
    fn a_round_passes_through_as_many_files_as_it_needs() {
        let ring = graph(4, &[(0, 1), (1, 2), (2, 3), (3, 0), (1, 0)]);
        let round = ring.round(&ring.cycles()[0]);
        assert_eq!(round.len(), 4);
        assert!(round.iter().zip(round.iter().cycle().skip(1)).all(|(one, next)| one.1 == next.0), "{round:?}");
        assert!(round.iter().all(|edge| ring.edges.contains_key(edge)));
    }

    #[test]
    fn the_weakest_edge_leaves_the_smallest_cycle() {
        // Two pairs, joined by a call forth and two calls back. Without one of the edges inside of
        // the pairs that are not listed, the ring of four is left.
        let graph = graph(4, &[(0, 1), (1, 0), (2, 3), (3, 2), (1, 2), (3, 0), (3, 0)]);
        let weakest = graph.weakest(&graph.cycles()[0]);
        assert_eq!(weakest, [((0, 1), 2), ((1, 2), 2), ((2, 3), 2), ((3, 0), 2)]);
    }
}
