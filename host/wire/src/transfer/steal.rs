//! Decides when an idle holder takes a piece over from a slow one.

use super::plan::HolderIndex;

/// Load and rate of a holder.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct HolderLoad {
    pub(crate) holder: HolderIndex,
    /// Requested bytes that have not arrived.
    pub(crate) left_bytes: u64,
    /// Measured bytes a second.
    pub(crate) rate: Option<f64>,
    /// Whether more can be requested from it, and it may be fast.
    pub(crate) has_room: bool,
}

/// Minimum gain factor, as duplicated bytes are lost.
const GAIN: f64 = 2.0;
/// Minimum gain in seconds, as the new request takes time.
const GAIN_S: f64 = 0.02;
/// Assumed bytes a second of an unmeasured holder, if no measured one is faster.
const ASSUMED: f64 = 1e7;

/// Returns the holder that takes a piece over, and the one that loses it.
pub(crate) fn steal(loads: &[HolderLoad], piece_bytes: u64) -> Option<(HolderIndex, HolderIndex)> {
    let fastest = loads.iter().filter_map(|load| load.rate).fold(ASSUMED, f64::max);
    // A holder that stopped sending has a rate near zero.
    let seconds = |bytes: u64, rate: f64| bytes as f64 / rate.max(1.0);
    let victim = |load: &&HolderLoad| load.left_bytes > 0 && load.rate.is_some();
    let left = |load: &HolderLoad| seconds(load.left_bytes, load.rate.unwrap_or(fastest));
    let victim = loads.iter().filter(victim).max_by(|a, b| left(a).total_cmp(&left(b)))?;
    let taken = |load: &HolderLoad| seconds(load.left_bytes + piece_bytes, load.rate.unwrap_or(fastest));
    let others = loads.iter().filter(|load| load.holder != victim.holder && load.has_room);
    let thief = others.min_by(|a, b| taken(a).total_cmp(&taken(b)))?;
    (left(victim) > GAIN * taken(thief) + GAIN_S).then_some((thief.holder, victim.holder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_holder_yields_to_the_first_idle_one() {
        let load = |holder, left_bytes, rate, has_room| HolderLoad { holder, left_bytes, rate, has_room };
        type Row<'a> = (&'a [HolderLoad], Option<(HolderIndex, HolderIndex)>);
        let table: &[Row<'_>] = &[
            (&[], None),
            (&[load(0, 1 << 20, Some(1e6), true)], None),
            // The other holder is faster.
            (&[load(0, 1 << 20, Some(1e6), true), load(1, 0, Some(1e8), true)], Some((1, 0))),
            (&[load(0, 1 << 20, Some(1e6), true), load(1, 0, Some(1e8), false)], None),
            // Not enough faster.
            (&[load(0, 1 << 20, Some(1e8), true), load(1, 0, Some(1.5e8), true)], None),
            // The victim stopped sending; the thief is unmeasured.
            (&[load(0, 1 << 20, Some(0.0), false), load(1, 0, None, true)], Some((1, 0))),
            // The slowest of three loses to the fastest.
            (
                &[load(0, 1 << 20, Some(1e6), true), load(1, 1 << 20, Some(2e6), true), load(2, 0, Some(1e8), true)],
                Some((2, 0)),
            ),
        ];
        for (loads, expected) in table {
            assert_eq!(steal(loads, 1 << 20), *expected, "{loads:?}");
        }
    }
}
