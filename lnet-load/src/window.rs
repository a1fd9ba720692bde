//! A window of messages that is kept full: the loop of loads that one thread makes.

/// Keeps messages under way as long as `goes_on` says so, and then until all have ended; how many there were.
/// `goes_on` is told how many are under way, `start` starts the message of this number if the window has
/// room, and `await_ends` says how many have ended since.
///
/// # Errors
/// The first error of any of the three.
pub fn keep_full<S, E>(
    state: &mut S,
    mut goes_on: impl FnMut(&S, u64) -> Result<bool, E>,
    mut start: impl FnMut(&mut S, u64) -> Result<bool, E>,
    mut await_ends: impl FnMut(&mut S) -> Result<u64, E>,
) -> Result<u64, E> {
    let (mut started, mut ended) = (0, 0);
    loop {
        if goes_on(state, started - ended)? {
            while start(state, started)? {
                started += 1;
            }
        } else if ended == started {
            return Ok(ended);
        }
        ended += await_ends(state)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Counted {
        under_way: u64,
        started: u64,
        most: u64,
    }

    /// Messages until as many as given have started, four at once, of which the one of a number is refused.
    fn run(messages: u64, refused: Option<u64>) -> (Result<u64, &'static str>, Counted) {
        let mut counted = Counted::default();
        let start = |counted: &mut Counted, number| {
            assert_eq!(number, counted.started);
            if counted.under_way == 4 || counted.started == messages {
                return Ok(false);
            }
            if refused == Some(number) {
                return Err("refused");
            }
            counted.started += 1;
            counted.under_way += 1;
            counted.most = counted.most.max(counted.under_way);
            Ok(true)
        };
        let await_ends = |counted: &mut Counted| {
            counted.under_way -= 1;
            Ok(1)
        };
        let goes_on = |counted: &Counted, under_way| {
            assert_eq!(under_way, counted.under_way);
            Ok(counted.started < messages)
        };
        let result = keep_full(&mut counted, goes_on, start, await_ends);
        (result, counted)
    }

    #[test]
    fn the_window_is_full_and_all_messages_end() {
        let (ended, Counted { under_way, started, most }) = run(10, None);
        assert_eq!((ended, under_way, started, most), (Ok(10), 0, 10, 4));
        assert_eq!(run(0, None).0, Ok(0));
        assert_eq!(run(10, Some(6)).0, Err("refused"));
    }
}
