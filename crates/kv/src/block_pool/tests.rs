//! Claims about the pool, one by one; the model test plays them at random.

use super::*;

fn take(pool: &mut BlockPool) -> (BlockId, Vec<Reclaimed>) {
    let mut reclaimed = Vec::new();
    let block = pool.allocate(|item| reclaimed.push(item)).unwrap();
    pool.check_invariants();
    (block, reclaimed)
}

fn evicted(block: BlockId) -> Reclaimed {
    Reclaimed::Block { block, is_whole: true }
}

#[test]
fn free_blocks_are_used_before_cached_ones_are_evicted() {
    let mut pool = BlockPool::new(3, None);
    let [a, b, c] = [take(&mut pool).0, take(&mut pool).0, take(&mut pool).0];
    assert_eq!(pool.allocate(|_| {}), None);
    pool.release(a, Retention::Keep);
    pool.release(b, Retention::Keep);
    pool.release(c, Retention::Drop);
    assert_eq!(take(&mut pool), (c, vec![]), "the free block first");
    assert_eq!(take(&mut pool), (a, vec![evicted(a)]), "then the block released first");
}

#[test]
fn a_touched_block_is_not_evicted_and_is_the_youngest_after_its_release() {
    let mut pool = BlockPool::new(2, None);
    let [a, b] = [take(&mut pool).0, take(&mut pool).0];
    pool.release(a, Retention::Keep);
    pool.release(b, Retention::Keep);
    pool.touch(a);
    assert_eq!(take(&mut pool), (b, vec![evicted(b)]));
    pool.release(b, Retention::Keep);
    pool.release(a, Retention::Keep);
    assert_eq!(take(&mut pool), (b, vec![evicted(b)]));
}

#[test]
fn shared_tokens_are_counted_once_as_live_and_once_per_reference() {
    let mut pool = BlockPool::new(1, None);
    let (block, _) = take(&mut pool);
    pool.set_num_tokens(block, 16);
    pool.touch(block);
    let counts = pool.counts();
    assert_eq!((counts.num_live_tokens, counts.num_referenced_tokens), (16, 32));
    assert_eq!(counts.num_shared, 1);
    pool.release(block, Retention::Keep);
    pool.release(block, Retention::Keep);
    assert_eq!((pool.counts().num_live_tokens, pool.counts().num_shared), (0, 0));
    pool.check_invariants();
}

#[test]
fn window_parts_that_nobody_sees_make_room_for_more_blocks() {
    let window = WindowConfig { num_tokens: 8, full_weight: 1, window_weight: 2 };
    let mut pool = BlockPool::new(2, Some(window));
    assert_eq!(pool.num_ids(), 6);
    let [a, b] = [take(&mut pool).0, take(&mut pool).0];
    assert_eq!((pool.num_available(), pool.allocate(|_| {})), (0, None));
    pool.release_window_part(a);
    assert_eq!((pool.num_available(), pool.allocate(|_| {})), (0, None));
    pool.release_window_part(b);
    assert_eq!(pool.num_available(), 1);
    let (_, reclaimed) = take(&mut pool);
    assert_eq!(reclaimed, [Reclaimed::WindowPart(a), Reclaimed::WindowPart(b)]);
    assert_eq!(pool.counts().num_window_parts, 1);
}

#[test]
fn memory_of_free_blocks_is_given_back_before_more_is_committed_than_the_capacity() {
    let window = WindowConfig { num_tokens: 8, full_weight: 2, window_weight: 1 };
    let mut pool = BlockPool::new(2, Some(window));
    let [a, b] = [take(&mut pool).0, take(&mut pool).0];
    pool.release_window_part(a);
    pool.release_window_part(b);
    while pool.evict_next(|_| {}).is_some() {}
    pool.release(a, Retention::Drop);
    pool.release(b, Retention::Drop);
    assert_eq!(take(&mut pool), (b, vec![]));
    let (_, reclaimed) = take(&mut pool);
    assert_eq!(reclaimed, []);
    assert_eq!(pool.committed_share(), (6, 6));
}

#[test]
#[should_panic(expected = "released once too often")]
fn a_block_that_nobody_holds_cannot_be_released() {
    let mut pool = BlockPool::new(1, None);
    let (block, _) = take(&mut pool);
    pool.release(block, Retention::Drop);
    pool.release(block, Retention::Drop);
}
