//! The numbers that an arg may have: whole ones, and decimal ones where it is an `f32`.

use std::cmp::Ordering;
use std::fmt;

use super::{Elem, Number};

impl Number {
    /// A number of an `f32`.
    pub fn real(value: f32) -> Number {
        Number::Real { bits: value.to_bits() }
    }

    /// The number as one of `elem`: what an `f32` takes is rounded to the nearest.
    pub fn of(self, elem: &Elem) -> Number {
        match (elem, self) {
            (Elem::F32, Number::Whole { value }) => Number::real(value as f32),
            _ => self,
        }
    }

    /// The number of `elem` that a text says; none for what is no finite number of it.
    pub fn parse(elem: &Elem, text: &str) -> Option<Number> {
        match elem {
            Elem::F32 => {
                text.parse().ok().filter(|value: &f32| value.is_finite()).map(Number::real)
            }
            _ => text.parse().ok().map(|value| Number::Whole { value }),
        }
    }

    /// The number if it is whole.
    pub fn whole(self) -> Option<i64> {
        match self {
            Number::Whole { value } => Some(value),
            Number::Real { .. } => None,
        }
    }

    /// The nearest number of 64 bits, which an `f32` is itself.
    pub fn value(self) -> f64 {
        match self {
            Number::Whole { value } => value as f64,
            Number::Real { bits } => f32::from_bits(bits).into(),
        }
    }

    /// Whether the number is one of `low..=high`.
    pub fn is_within(self, low: Number, high: Number) -> bool {
        low.order(self).is_le() && self.order(high).is_le()
    }

    /// Which of the two is greater.
    pub fn order(self, other: Number) -> Ordering {
        match (self, other) {
            (Number::Whole { value: a }, Number::Whole { value: b }) => a.cmp(&b),
            // Zero has no sign here.
            _ => (self.value() + 0.0).total_cmp(&(other.value() + 0.0)),
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Whole { value } => value.fmt(f),
            Number::Real { bits } => f32::from_bits(*bits).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_one_of_its_type() {
        let parsed = |elem, text| Number::parse(elem, text).map(|number| number.to_string());
        assert_eq!(parsed(&Elem::F32, "0.1").as_deref(), Some("0.1"));
        assert_eq!(parsed(&Elem::F32, "1").as_deref(), Some("1"));
        assert_eq!(parsed(&Elem::I64, "9007199254740993").as_deref(), Some("9007199254740993"));
        for text in ["nan", "-inf", "1e39", "0.5.5"] {
            assert_eq!(parsed(&Elem::F32, text), None);
        }
        assert_eq!(parsed(&Elem::I32, "0.5"), None);
    }

    #[test]
    fn a_range_has_both_of_its_ends() {
        let (low, high) = (Number::real(-0.0), Number::real(0.1));
        let is_within = |value| Number::real(value).is_within(low, high);
        assert!([0.0, -0.0, 0.05, 0.1].into_iter().all(is_within));
        assert!(![-1e-20, 0.100_000_01, f32::NAN, -f32::NAN].into_iter().any(is_within));
        let (low, high) = (Number::Whole { value: 1 }, Number::Whole { value: i64::MAX });
        assert!(high.is_within(low, high) && !Number::Whole { value: 0 }.is_within(low, high));
    }
}
