//! Drawing from prompts that somebody wrote.

use super::words::stream;
use rand::seq::SliceRandom;

/// Returns `num_drawn` positions below `num_items`, in an order of the seed's: each once before any
/// comes again. A longer list begins with a shorter one.
pub(super) fn draw(num_items: usize, num_drawn: usize, seed: u64) -> Vec<usize> {
    let mut drawn = Vec::with_capacity(num_drawn);
    let mut round = 0;
    while drawn.len() < num_drawn && num_items > 0 {
        let mut positions: Vec<usize> = (0..num_items).collect();
        positions.shuffle(&mut stream(seed, round));
        positions.truncate(num_drawn - drawn.len());
        drawn.append(&mut positions);
        round += 1;
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_comes_twice_while_there_is_enough() {
        let drawn = draw(10, 25, 3);
        for round in drawn.chunks(10) {
            let mut round = round.to_vec();
            round.sort_unstable();
            round.dedup();
            assert!(round.len() == 10 || round.len() == 5);
        }
        assert_ne!(drawn[..10], drawn[10..20]);
        assert_eq!(drawn[..7], draw(10, 7, 3));
        assert_ne!(drawn, draw(10, 25, 4));
    }
}
