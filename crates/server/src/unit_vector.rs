//! Embeddings as clients get them: cut and of length one.

/// Returns the first `num_dimensions` of `values`, scaled to an Euclidean norm of 1; all zeros stay
/// what they are. Sums are in double precision and in order, so equal values give equal bits.
pub(crate) fn unit_vector(mut values: Vec<f32>, num_dimensions: usize) -> Vec<f32> {
    values.truncate(num_dimensions);
    let norm = values.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
    if norm > 0.0 {
        for value in &mut values {
            #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
            let scaled = (f64::from(*value) / norm) as f32;
            *value = scaled;
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_is_scaled_again() {
        assert_eq!(unit_vector(vec![3.0, 4.0, 12.0], 2), [0.6, 0.8]);
        assert_eq!(unit_vector(vec![3.0, 0.0, -4.0], 3), [0.6, 0.0, -0.8]);
        assert_eq!(unit_vector(vec![0.0, 0.0, 1.0], 2), [0.0, 0.0]);
        // Squares of these overflow an f32, or vanish in one.
        for size in [1e30, 1e-30] {
            assert_eq!(unit_vector(vec![size, 0.0], 2), [1.0, 0.0]);
        }
    }
}
