//! When a holder that has nothing to do takes over from one that is slow.

use super::plan::HolderIndex;

/// How a holder does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Pace {
    pub(crate) holder: HolderIndex,
    /// Bytes that it was asked for and has not sent.
    pub(crate) left_bytes: u64,
    /// Bytes a second, where that has been measured.
    pub(crate) rate: Option<f64>,
    /// Whether it can be asked for more, and anything can be expected of it.
    pub(crate) has_room: bool,
}

/// Taking over must gain that much, or what is lost on the way is more.
const GAIN: f64 = 2.0;
/// And so many seconds: asking again takes a while.
const GAIN_S: f64 = 0.02;
/// Bytes a second that are expected of who has not been measured, where nobody is quicker.
const ASSUMED: f64 = 1e7;

/// Which holder takes a piece over, and from whom: thief and victim.
pub(crate) fn steal(paces: &[Pace], piece_bytes: u64) -> Option<(HolderIndex, HolderIndex)> {
    let fastest = paces.iter().filter_map(|pace| pace.rate).fold(ASSUMED, f64::max);
    // Who has not sent anything for some time has a rate of next to nothing.
    let seconds = |bytes: u64, rate: f64| bytes as f64 / rate.max(1.0);
    let victim = |pace: &&Pace| pace.left_bytes > 0 && pace.rate.is_some();
    let left = |pace: &Pace| seconds(pace.left_bytes, pace.rate.unwrap_or(fastest));
    let victim = paces.iter().filter(victim).max_by(|a, b| left(a).total_cmp(&left(b)))?;
    let taken = |pace: &Pace| seconds(pace.left_bytes + piece_bytes, pace.rate.unwrap_or(fastest));
    let others = paces.iter().filter(|pace| pace.holder != victim.holder && pace.has_room);
    let thief = others.min_by(|a, b| taken(a).total_cmp(&taken(b)))?;
    (left(victim) > GAIN * taken(thief) + GAIN_S).then_some((thief.holder, victim.holder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_gives_to_who_is_done_first() {
        let pace = |holder, left_bytes, rate, has_room| Pace { holder, left_bytes, rate, has_room };
        type Row<'a> = (&'a [Pace], Option<(HolderIndex, HolderIndex)>);
        let table: &[Row<'_>] = &[
            (&[], None),
            (&[pace(0, 1 << 20, Some(1e6), true)], None),
            // Another would be quicker.
            (&[pace(0, 1 << 20, Some(1e6), true), pace(1, 0, Some(1e8), true)], Some((1, 0))),
            (&[pace(0, 1 << 20, Some(1e6), true), pace(1, 0, Some(1e8), false)], None),
            // Not by much.
            (&[pace(0, 1 << 20, Some(1e8), true), pace(1, 0, Some(1.5e8), true)], None),
            // It has stopped sending, and the other is as new as it is.
            (&[pace(0, 1 << 20, Some(0.0), false), pace(1, 0, None, true)], Some((1, 0))),
            // Of three the slowest gives to the quickest.
            (
                &[pace(0, 1 << 20, Some(1e6), true), pace(1, 1 << 20, Some(2e6), true), pace(2, 0, Some(1e8), true)],
                Some((2, 0)),
            ),
        ];
        for (paces, expected) in table {
            assert_eq!(steal(paces, 1 << 20), *expected, "{paces:?}");
        }
    }
}
