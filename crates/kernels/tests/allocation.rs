//! The kernels of a step allocate nothing once their memory has grown to the step's size.

use mini_infer_core::{BlockSize, SlotId};
use mini_infer_kernels::{
    AddAndNorm, Isa, KvDtype, KvLayout, KvStorage, PackedMatrix, QuantizedRows, RotaryPairs,
    Rotation, SlidingPattern, ThreadPool, TokenHeads, TokenHeadsScratch, WeightMemory, WeightRows,
    WeightType, add_and_norm, gelu_tanh_gate, matmul, rms_norm, silu_gate,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, which counts.
struct Counting;

static NUM_ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed to the system's allocator as it came; counting touches no memory of
// the caller. Growing goes through the trait's own `realloc`, and so through `alloc`.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        NUM_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, and the memory came from the system's
        // allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const HEADS: TokenHeads<'_> =
    TokenHeads { num_heads: 4, num_kv_heads: 2, head_dim: 32, bias: None, norms: None };
const HIDDEN: usize = 128;
const NUM_ROWS: usize = 80;

#[test]
fn a_step_s_kernels_do_not_allocate() {
    let pool = ThreadPool::new(NonZeroUsize::new(2).unwrap());
    let isa = Isa::all_present()[0];
    let layout = KvLayout {
        num_layers: 1,
        num_kv_heads: HEADS.num_kv_heads,
        head_dim: HEADS.head_dim,
        block_size: BlockSize::DEFAULT,
        dtype: KvDtype::F16,
        sliding: SlidingPattern::None,
    };
    let mut storage = KvStorage::reserve(layout, 8).unwrap();
    let slots: Vec<_> = (0..).take(NUM_ROWS).map(SlotId).collect();
    let bytes = vec![0; HEADS.width() * WeightType::Q8_0.bytes_for(HIDDEN).unwrap()];
    let (out_features, weight_type) = (HEADS.width(), WeightType::Q8_0);
    let rows = WeightRows { weight_type, out_features, in_features: HIDDEN, bytes: &bytes };
    let matrix = PackedMatrix::pack(&pool, &WeightMemory::default(), &[rows]).unwrap();
    let (weight, angles) = (vec![1.0; HIDDEN], vec![0.5; HEADS.head_dim / 2]);
    let weights = AddAndNorm { summand_norm: Some(&weight), sum_norm: &weight, epsilon: 1e-6 };
    let x = vec![0.25; NUM_ROWS * HIDDEN];
    let (mut sum, mut normed) = (x.clone(), x.clone());
    let mut qkv = vec![0.0; NUM_ROWS * HEADS.width()];
    let mut gated = vec![0.0; NUM_ROWS * HEADS.width() / 2];
    let (mut quantized, mut scratch) = (QuantizedRows::default(), TokenHeadsScratch::default());
    let rotation = |_| Rotation { pairs: RotaryPairs::Halves, cos: &angles, sin: &angles };
    let mut step = || {
        rms_norm(isa, &pool, &x, &weight, 1e-6, &mut normed);
        add_and_norm(isa, &pool, &x, &mut sum, weights, &mut normed);
        matmul(isa, &pool, &normed, &matrix, &mut quantized, &mut qkv);
        silu_gate(isa, &pool, &qkv, HEADS.width() / 2, &mut gated);
        gelu_tanh_gate(isa, &pool, &qkv, HEADS.width() / 2, &mut gated);
        let (rows, storage, scratch) = (&mut qkv, &mut storage, &mut scratch);
        HEADS.prepare_and_store(isa, &pool, rows, rotation, storage, 0, &slots, scratch);
    };
    // A thread allocates when it first parks, and when it first gets a share of a kernel, which may
    // be late where others keep the cores busy.
    let settles = (0..100).any(|_| {
        let before = NUM_ALLOCATIONS.load(Ordering::Relaxed);
        (0..20).for_each(|_| step());
        NUM_ALLOCATIONS.load(Ordering::Relaxed) == before
    });
    assert!(settles, "in every 20 steps there is an allocation");
}
