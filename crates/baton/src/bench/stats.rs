//! Means, deviations and medians of repeated measurements.

/// What a list of measurements amounts to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Arithmetic mean.
    pub mean: f64,
    /// Sample standard deviation; 0 for a single measurement.
    pub stddev: f64,
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
}

impl Summary {
    /// Of these values; all zero if there are none.
    pub fn of(values: &[f64]) -> Summary {
        if values.is_empty() {
            return Summary::default();
        }
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        // From the mean on, so that large values lose no digits.
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let stddev = if values.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 };
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Summary { mean, stddev, median: (low + high) / 2.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_few_and_many() {
        assert_eq!(Summary::of(&[]), Summary::default());
        assert_eq!(Summary::of(&[3.0]), Summary { mean: 3.0, stddev: 0.0, median: 3.0 });
        let many = Summary::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!(many.mean, 5.0);
        assert_eq!(many.median, 4.5);
        assert!((many.stddev - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn large_values_keep_their_digits() {
        let nanoseconds = Summary::of(&[1e15 + 1.0, 1e15 + 2.0, 1e15 + 3.0]);
        assert_eq!((nanoseconds.stddev, nanoseconds.median), (1.0, 1e15 + 2.0));
    }
}
