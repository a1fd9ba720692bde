//! Number expressions: `7`, `[1,3-5]`, `[0-255/2]`.

use alloc::vec::Vec;
use core::fmt::{self, Display, Formatter};

/// Numbers from `low` to `high`, both included, each `step` after the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NumberRange {
    /// The first.
    pub low: u32,
    /// The bound of all; at least `low`.
    pub high: u32,
    /// The distance between two, at least 1.
    pub step: u32,
}

impl NumberRange {
    /// The numbers.
    pub fn values(self) -> impl Iterator<Item = u32> + Clone {
        (self.low..=self.high).step_by(self.step as usize)
    }

    pub(super) const fn contains(self, number: u32) -> bool {
        self.low <= number && number <= self.high && (number - self.low).is_multiple_of(self.step)
    }

    fn count(self) -> u64 {
        u64::from((self.high - self.low) / self.step) + 1
    }
}

impl Display for NumberRange {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { low, high, step } = self;
        match (low == high, step) {
            (true, _) => write!(f, "{low}"),
            (false, 1) => write!(f, "{low}-{high}"),
            (false, step) => write!(f, "{low}-{high}/{step}"),
        }
    }
}

/// The members of a bracket expression, in their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Expression(Vec<NumberRange>);

impl Expression {
    /// Reads what is between the brackets; numbers go up to `max` and have digits of `radix`.
    pub(super) fn parse(text: &str, max: u32, radix: u32) -> Option<Self> {
        let number = |text: &str| {
            let digits = text.trim();
            let fits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
            u32::from_str_radix(digits, radix).ok().filter(|value| fits && *value <= max)
        };
        let range = |text: &str| {
            let Some((low, rest)) = text.split_once('-') else {
                let value = number(text)?;
                return Some(NumberRange { low: value, high: value, step: 1 });
            };
            let (high, step) = match rest.split_once('/') {
                Some((high, step)) => (number(high)?, number(step)?),
                None => (number(rest)?, 1),
            };
            let low = number(low)?;
            (low <= high && step > 0).then_some(NumberRange { low, high, step })
        };
        text.split(',').map(range).collect::<Option<Vec<_>>>().map(Self)
    }

    /// How many numbers it enumerates.
    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(|range| range.count()).sum()
    }

    /// The numbers.
    pub(super) fn values(&self) -> impl Iterator<Item = u32> + Clone + '_ {
        self.0.iter().flat_map(|range| range.values())
    }

    /// Its members.
    pub(super) fn into_ranges(self) -> Vec<NumberRange> {
        self.0
    }
}
