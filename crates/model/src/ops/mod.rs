//! The small op set that the forward pass is written against.
//!
//! [`Ops`] has two implementations: [`mod@reference`] (f32, naive) and [`cpu`] (quantised kernels);
//! a GPU becomes another. Everything a device owns is an associated type, so that the model code
//! never touches numbers. Every op computes each row on its own: a row's result depends neither
//! on how many rows share the step nor on how many threads run (batch invariance).
//!
//! All activations are f32, row-major `[rows, width]`; an op sets the shape of its output.

pub mod cpu;
pub mod reference;

use crate::error::ModelError;
use crate::rope::RopeTable;
use crate::weights::TensorView;
use mini_infer_core::{Batch, BlockId, KvPart, TokenId};
use mini_infer_kernels::{Int4Columns, Int4Error, QuantizeError, QuantizedType, ReleaseBytes};
use std::ops::Range;

/// Heads and widths of one attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionGeometry {
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Dimensions of a head.
    pub head_dim: usize,
    /// Factor on query-key products, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Most recent tokens that a query sees, itself included; `None` for all.
    pub window: Option<usize>,
    /// What scores are squeezed below: `cap * tanh(score / cap)`; `None` where they are not.
    pub soft_cap: Option<f32>,
}

impl AttentionGeometry {
    /// First position that the query at `position` sees.
    #[must_use]
    pub fn first_visible(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// Width of a row of queries, `num_heads * head_dim`.
    #[must_use]
    pub fn query_width(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Width of a row of keys (or of values), `num_kv_heads * head_dim`.
    #[must_use]
    pub fn kv_width(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// Width of a row of fused queries, keys and values.
    #[must_use]
    pub fn qkv_width(&self) -> usize {
        self.query_width() + 2 * self.kv_width()
    }
}

/// The nonlinearity of a gated feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `gelu` with the tanh approximation.
    GeluTanh,
}

/// The weights of [`Ops::add_and_norm`].
#[derive(Debug)]
pub struct ResidualNorms<'a, V> {
    /// Of a norm over what is added, where the model has one.
    pub added: Option<&'a V>,
    /// Of the norm over the sum.
    pub sum: &'a V,
    /// Added to every mean square.
    pub epsilon: f32,
}

/// What [`Ops::prepare_and_store_kv`] does to heads before it rotates them.
#[derive(Debug)]
pub struct HeadWeights<'a, B, V> {
    /// What is added to queries, keys and values, where the model has it.
    pub bias: Option<&'a B>,
    /// How heads are normalised, where they are.
    pub norms: Option<HeadNorms<'a, V>>,
}

/// The weights of the norms of heads, `[head_dim]`.
#[derive(Debug)]
pub struct HeadNorms<'a, V> {
    /// For every query head.
    pub query: &'a V,
    /// For every key head.
    pub key: &'a V,
    /// Added to every mean square.
    pub epsilon: f32,
}

/// Where rows are added to others.
#[derive(Clone, Copy, Debug)]
pub struct RowTargets<'a> {
    /// For each row, the one that it is added to; none twice.
    pub rows: &'a [u32],
    /// What each row is multiplied with first, where it is.
    pub factors: Option<&'a [f32]>,
    /// The column that a row's first value is added to.
    pub first_column: usize,
}

impl RowTargets<'_> {
    /// Returns for each row the range of the values that it is added to, and its factor.
    ///
    /// # Panics
    /// When there are not `num_rows` targets, or a row of `width` values does not fit into one of
    /// `out_width`.
    pub(crate) fn places(
        &self,
        [num_rows, width]: [usize; 2],
        out_width: usize,
    ) -> impl Iterator<Item = (Range<usize>, f32)> {
        let Self { rows, factors, first_column } = *self;
        assert_eq!(num_rows, rows.len());
        assert!(factors.is_none_or(|factors| factors.len() == num_rows));
        assert!(first_column + width <= out_width, "{first_column} + {width} of {out_width}");
        rows.iter().enumerate().map(move |(i, &row)| {
            let first = row as usize * out_width + first_column;
            (first..first + width, factors.map_or(1.0, |factors| factors[i]))
        })
    }
}

/// Device operations; see the module header for the rules that all of them keep.
pub trait Ops: 'static {
    /// Activations `[rows, width]`.
    type Buffer;
    /// Weights `[out_features, in_features]`, possibly stacked from tensors of different types.
    type Matrix;
    /// f32 parameters `[width]`, such as a norm's weight.
    type Vector;
    /// What one layer adds to queries, keys and values.
    type QkvBias;
    /// KV storage of all layers and blocks.
    type Kv;

    /// Prepares a matrix whose output features are those of `parts`, one after the other. All
    /// parts have the same number of input features, and rows. `release` may be called with any of
    /// their bytes that are not needed any more.
    ///
    /// # Errors
    /// When a part's type or shape is not supported.
    fn matrix(
        &self,
        parts: &[TensorView<'_>],
        release: &ReleaseBytes<'_>,
    ) -> Result<Self::Matrix, ModelError>;

    /// Returns the bytes of a tensor of floats in another format, row-major. `release` may be
    /// called with any of its bytes that are not needed any more.
    ///
    /// # Errors
    /// When a weight does not fit the format.
    fn quantize(
        &self,
        tensor: &TensorView<'_>,
        to: QuantizedType,
        release: &ReleaseBytes<'_>,
    ) -> Result<Vec<u8>, QuantizeError>;

    /// Returns the weights of some output features as rows of four-bit weights.
    ///
    /// # Errors
    /// When the fields of the matrix do not fit each other.
    fn int4_rows(
        &self,
        columns: &Int4Columns<'_>,
        outputs: Range<usize>,
    ) -> Result<Vec<u8>, Int4Error>;

    /// Prepares a parameter vector.
    fn vector(&self, weights: Vec<f32>) -> Self::Vector;

    /// Prepares the biases of layers, each `[query, key, value]`, for heads of `geometry` that
    /// `rope` rotates; in the same order.
    fn qkv_biases(
        &self,
        layers: &[[TensorView<'_>; 3]],
        geometry: &AttentionGeometry,
        rope: &RopeTable,
    ) -> Vec<Self::QkvBias>;

    /// Checks that [`Self::attention`] can compute such heads.
    ///
    /// # Errors
    /// When it cannot.
    fn check_attention(&self, geometry: &AttentionGeometry) -> Result<(), ModelError>;

    /// Returns an empty buffer; the op that first writes it gives it its shape.
    fn buffer(&self) -> Self::Buffer;

    /// Writes the rows of `table` that `tokens` name: `[num_tokens, in_features]`.
    fn embed(&self, table: &Self::Matrix, tokens: &[TokenId], out: &mut Self::Buffer);

    /// Writes `x * weight / sqrt(mean(x^2) + epsilon)`, row by row.
    fn rms_norm(
        &self,
        x: &Self::Buffer,
        weight: &Self::Vector,
        epsilon: f32,
        out: &mut Self::Buffer,
    );

    /// Writes `x * w^T`: `[rows, in_features]` to `[rows, out_features]`.
    fn matmul(&self, x: &Self::Buffer, w: &Self::Matrix, out: &mut Self::Buffer);

    /// Adds `x` to `sum`, and writes the norm of the result to `out`, row by row, with the weights
    /// that `norms` names.
    fn add_and_norm(
        &self,
        x: &Self::Buffer,
        sum: &mut Self::Buffer,
        norms: ResidualNorms<'_, Self::Vector>,
        out: &mut Self::Buffer,
    );

    /// Multiplies every element by `factor`.
    fn scale(&self, x: &mut Self::Buffer, factor: f32);

    /// Prepares the rows of `qkv` (`[num_tokens, qkv_width]`, queries, then keys, then values) for
    /// attention: adds a bias and normalises each query head and each key head by itself as
    /// [`Self::rms_norm`] does a row, where the model has weights for that, and rotates both to
    /// their positions. Stores keys and values in the slots of the batch.
    #[expect(clippy::too_many_arguments, reason = "one op, no natural grouping")]
    fn prepare_and_store_kv(
        &self,
        qkv: &mut Self::Buffer,
        geometry: &AttentionGeometry,
        heads: HeadWeights<'_, Self::QkvBias, Self::Vector>,
        rope: &RopeTable,
        layer: usize,
        batch: &Batch,
        kv: &mut Self::Kv,
    );

    /// Attends each query in `qkv` to the stored keys and values of its sequence up to its own
    /// position, from the start of the window on: `[num_tokens, query_width]`. Keys and values are
    /// read back in stored form, also those of this step, so that a prefix hit and a miss see the
    /// same numbers. `bias` is what was added to `qkv`: a device may leave what it knows of it out
    /// of stored keys.
    #[expect(clippy::too_many_arguments, reason = "one op, no natural grouping")]
    fn attention(
        &self,
        qkv: &Self::Buffer,
        geometry: &AttentionGeometry,
        bias: Option<&Self::QkvBias>,
        layer: usize,
        batch: &Batch,
        kv: &Self::Kv,
        out: &mut Self::Buffer,
    );

    /// Writes `activation(gate) * up` from rows of `[gate, up]`: `[rows, 2 * f]` to `[rows, f]`.
    fn gated_activation(
        &self,
        gate_up: &Self::Buffer,
        activation: Activation,
        out: &mut Self::Buffer,
    );

    /// Writes the given rows of `x`, in order.
    fn gather_rows(&self, x: &Self::Buffer, rows: &[u32], out: &mut Self::Buffer);

    /// Gives `out` the shape of `x`, and fills it with zeros.
    fn zeros_like(&self, x: &Self::Buffer, out: &mut Self::Buffer);

    /// Adds the rows of `x` to parts of rows of `out`.
    fn add_rows(&self, x: &Self::Buffer, to: RowTargets<'_>, out: &mut Self::Buffer);

    /// Replaces every value by `cap * tanh(value / cap)`.
    fn soft_cap(&self, values: &mut [f32], cap: f32);

    /// Replaces `out` with `x * w^T`, `[rows, out_features]`, in memory of the host.
    fn matmul_to_host(&self, x: &Self::Buffer, w: &Self::Matrix, out: &mut Vec<f32>);

    /// Replaces `out` with all of `x`, in memory of the host.
    fn read(&self, x: &Self::Buffer, out: &mut Vec<f32>);

    /// Calls `compute` once with each of `0..num_parts`, on the threads that the ops run on.
    fn compute_parts(&self, num_parts: usize, compute: &(dyn Fn(usize) + Sync)) {
        (0..num_parts).for_each(compute);
    }

    /// Returns the bytes of one block.
    fn block_bytes(&self, kv: &Self::Kv) -> usize;

    /// Copies all of block `from` to block `to`.
    fn copy_block(&self, kv: &mut Self::Kv, from: BlockId, to: BlockId);

    /// Returns the bytes of a block, gathered in `scratch` where they do not lie together.
    fn export_block<'a>(
        &self,
        kv: &'a Self::Kv,
        block: BlockId,
        scratch: &'a mut Vec<u8>,
    ) -> &'a [u8];

    /// Fills a block with what [`Self::export_block`] returned for one.
    fn import_block(&self, kv: &mut Self::Kv, block: BlockId, bytes: &[u8]);

    /// Gives the memory of one part of the `num_blocks` blocks from `first` on back to the system,
    /// as far as it can; their content is then undefined.
    fn discard(&self, kv: &mut Self::Kv, part: KvPart, first: BlockId, num_blocks: u32);
}
