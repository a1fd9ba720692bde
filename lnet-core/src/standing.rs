//! How soon peers take what is sent to them, and which of them have their turns together.

/// How soon a peer takes what is sent to it, the best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Standing {
    /// The last message to it has ended well, and soon; none is stuck.
    Prompt,
    /// Nothing has ended well or was stuck so far, or it took long.
    Unknown,
    /// A message was with its LND for long when others waited, and none has ended well since.
    Silent,
}

/// Peers that have their turns together, the best first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// Peers of the best standing none of whose messages has a credit.
    First,
    Prompt,
    Unknown,
    Silent,
}

impl Turn {
    /// All of them, the best first.
    pub(crate) const ALL: [Self; 4] = [Self::First, Self::Prompt, Self::Unknown, Self::Silent];

    /// The turn of a peer of this standing whose messages have so many credits of NIs.
    #[inline]
    pub(crate) const fn of(standing: Standing, credit_count: u32) -> Self {
        match standing {
            Standing::Prompt if credit_count == 0 => Self::First,
            Standing::Prompt => Self::Prompt,
            Standing::Unknown => Self::Unknown,
            Standing::Silent => Self::Silent,
        }
    }

    /// The worst turn of peers that are not worse.
    pub(crate) const fn worst(self) -> Self {
        match self {
            Self::First => Self::Prompt,
            other => other,
        }
    }
}
