//! Wall time for certificates and tokens: whole seconds, and a clock that tests and simulations can replace.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::UnixTime;
use serde::{Deserialize, Serialize};

/// Maximum difference between the clocks of two machines, in seconds. Certificates and tokens become valid this much
/// before they are issued, and are accepted this much after they expire.
pub const CLOCK_SKEW_S_MAX: u64 = 120;

/// Seconds since 1970-01-01 00:00 UTC. `Display` formats it as RFC 3339.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Adds a duration; saturates at the maximum.
    pub fn after(self, time: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(time.as_secs()))
    }

    /// Subtracts a duration; saturates at zero.
    pub fn before(self, time: Duration) -> Timestamp {
        Timestamp(self.0.saturating_sub(time.as_secs()))
    }

    /// Returns the absolute difference between two timestamps.
    pub fn abs_diff(self, other: Timestamp) -> Duration {
        Duration::from_secs(self.0.abs_diff(other.0))
    }

    pub(crate) fn unix(self) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(self.0))
    }
}

impl From<UnixTime> for Timestamp {
    fn from(time: UnixTime) -> Self {
        Timestamp(time.as_secs())
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        Timestamp(time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = civil(self.0 / 86_400);
        let second = self.0 % 86_400;
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

/// Converts days since 1970 to year, month and day: `civil_from_days` of Howard Hinnant's "chrono-Compatible Low-Level
/// Date Algorithms".
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// A source of wall time. Tests replace it with a clock that is off.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// Returns the current time, in UTC.
    fn now(&self) -> Timestamp;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        SystemTime::now().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_rfc_3339() {
        for (seconds, shown) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(Timestamp(seconds).to_string(), shown);
        }
    }
}
