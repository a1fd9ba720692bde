//! Number expressions: `7`, `[1,3-5]`, `[0-255/2]`.

use std::iter::StepBy;
use std::ops::RangeInclusive;

/// The members of a bracket expression, in their order.
#[derive(Clone, Debug)]
pub(super) struct Expression(Vec<StepBy<RangeInclusive<u32>>>);

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
                return Some((value..=value).step_by(1));
            };
            let (high, stride) = match rest.split_once('/') {
                Some((high, stride)) => (number(high)?, number(stride)?),
                None => (number(rest)?, 1),
            };
            let low = number(low)?;
            (low <= high && stride > 0).then(|| (low..=high).step_by(stride as usize))
        };
        text.split(',').map(range).collect::<Option<Vec<_>>>().map(Self)
    }

    /// How many numbers it enumerates.
    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(|range| range.size_hint().0 as u64).sum()
    }

    /// The numbers.
    pub(super) fn values(&self) -> impl Iterator<Item = u32> + Clone + '_ {
        self.0.iter().cloned().flatten()
    }
}
