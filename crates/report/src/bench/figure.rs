//! A figure that was measured several times.

use serde::Serialize;

/// A figure of several iterations.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Figure {
    mean: f64,
    min: f64,
    max: f64,
    median: f64,
    /// Of each iteration, in order.
    values: Vec<f64>,
}

impl Figure {
    /// Of what each iteration measured. `None` if there was none, or one did not tell.
    pub fn of(values: impl IntoIterator<Item = Option<f64>>) -> Option<Self> {
        let values = values.into_iter().collect::<Option<Vec<f64>>>()?;
        let is_finite = values.iter().all(|value| value.is_finite());
        let count = f64::from(u32::try_from(values.len()).ok()?);
        (is_finite && !values.is_empty()).then(|| Self {
            mean: values.iter().sum::<f64>() / count,
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            median: median(&values),
            values,
        })
    }

    /// The mean of all iterations.
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// The middle one, or the mean of the two in the middle.
    pub fn median(&self) -> f64 {
        self.median
    }

    /// How many iterations there were.
    pub fn count(&self) -> usize {
        self.values.len()
    }

    /// Whether some iteration of one lies between some of the other.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.min <= other.max && other.min <= self.max
    }

    /// How far the iterations lie apart, as a share of the mean.
    pub fn spread(&self) -> f64 {
        if self.mean == 0.0 { 0.0 } else { (self.max - self.min) / self.mean.abs() }
    }
}

/// Of numbers none of which is NaN; 0 if there are none.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = |index: usize| sorted.get(index).copied().unwrap_or_default();
    (middle(sorted.len().saturating_sub(1) / 2) + middle(sorted.len() / 2)) / 2.0
}

/// What was counted as a number to calculate with: exact below 2^53.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn number(count: u64) -> f64 {
    count as f64
}

/// A quotient, if there is one.
pub(crate) fn quotient(dividend: f64, divisor: f64) -> Option<f64> {
    (divisor > 0.0 && dividend.is_finite()).then(|| dividend / divisor)
}

/// A figure with about three digits, or whole if it is; a dash if there is none.
pub(crate) fn short(figure: Option<f64>) -> String {
    match figure {
        None => "-".into(),
        Some(figure) if figure.fract() == 0.0 => whole(figure),
        Some(figure) if figure.abs() < 10.0 => format!("{figure:.2}"),
        Some(figure) if figure.abs() < 100.0 => format!("{figure:.1}"),
        Some(figure) => whole(figure),
    }
}

/// A whole number with its thousands apart.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole(figure: f64) -> String {
    // Conversions of floats saturate.
    let sign = if figure < 0.0 { "-" } else { "" };
    format!("{sign}{}", crate::text::grouped(figure.abs().round() as u64))
}

/// A count that may be the mean of several.
pub(crate) fn count(figure: Option<&Figure>) -> String {
    short(figure.map(Figure::mean))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_a_mean_and_a_spread() {
        let figure = Figure::of([Some(1.0), Some(2.0), Some(3.0)]).unwrap();
        assert_eq!((figure.mean(), figure.min, figure.max, figure.spread()), (2.0, 1.0, 3.0, 1.0));
        assert_eq!(figure.median(), 2.0);
        assert_eq!(Figure::of([4.0, 1.0, 9.0, 2.0].map(Some)).unwrap().median(), 3.0);
        assert_eq!(Figure::of([Some(1.0), None]), None);
        assert_eq!(Figure::of([]), None);
        assert_eq!(Figure::of([Some(f64::NAN)]), None);
        assert_eq!(quotient(1.0, 0.0), None);
    }

    #[test]
    fn figures_are_short() {
        let said = [0.0, 0.123, 9.87, 42.04, 1234.5, -2000.0].map(|figure| short(Some(figure)));
        assert_eq!(said, ["0", "0.12", "9.87", "42.0", "1,235", "-2,000"]);
        assert_eq!(short(Some(8.0)), "8");
        assert_eq!(short(None), "-");
        assert_eq!(count(Figure::of([Some(4.0), Some(6.0)]).as_ref()), "5");
        assert_eq!(count(Figure::of([Some(4.0), Some(5.0)]).as_ref()), "4.50");
    }
}
