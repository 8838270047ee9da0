//! Dates and timestamps of columns.

/// Days in 400 years, a cycle of the Gregorian calendar.
const CYCLE_DAYS: i64 = 146_097;
/// Days from 0000-03-01, the first day of a cycle, to 1970-01-01.
const EPOCH_DAYS: i64 = 719_468;

/// Days since 1970-01-01 in the Gregorian calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Date(i32);

impl Date {
    /// Creates a date from days since the epoch.
    pub const fn from_days(days: i32) -> Self {
        Date(days)
    }

    /// Days since the epoch.
    pub const fn days(self) -> i32 {
        self.0
    }

    /// Creates a date from year, month (1 to 12) and day (1 to 31). None if the date does not exist, or is more than
    /// 2³¹ days from the epoch.
    pub fn from_ymd(year: i32, month: u32, day: u32) -> Option<Self> {
        // Years start in March here, so that the leap day is the last day.
        let (year, since_march) = match month {
            1 | 2 => (i64::from(year) - 1, i64::from(month) + 9),
            3..=12 => (i64::from(year), i64::from(month) - 3),
            _ => return None,
        };
        let (cycle, of_cycle) = (year.div_euclid(400), year.rem_euclid(400));
        let of_year = (153 * since_march + 2) / 5 + i64::from(day) - 1;
        let days = of_cycle * 365 + of_cycle / 4 - of_cycle / 100 + of_year;
        let date = Date(i32::try_from(cycle * CYCLE_DAYS + days - EPOCH_DAYS).ok()?);
        (date.ymd().1 == month && date.ymd().2 == day).then_some(date)
    }

    /// Year, month (1 to 12) and day (1 to 31).
    pub fn ymd(self) -> (i32, u32, u32) {
        let days = i64::from(self.0) + EPOCH_DAYS;
        let (cycle, of_cycle) = (days.div_euclid(CYCLE_DAYS), days.rem_euclid(CYCLE_DAYS));
        let year = (of_cycle - of_cycle / 1_460 + of_cycle / 36_524 - of_cycle / 146_096) / 365;
        let of_year = of_cycle - (365 * year + year / 4 - year / 100);
        let since_march = (5 * of_year + 2) / 153;
        let day = of_year - (153 * since_march + 2) / 5 + 1;
        let (month, later) = if since_march < 10 { (since_march + 3, 0) } else { (since_march - 9, 1) };
        // All three fit: 2³¹ days are about six million years.
        ((cycle * 400 + year + later) as i32, month as u32, day as u32)
    }
}

/// Microseconds since 1970-01-01T00:00:00 in the column's time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Creates a timestamp from microseconds since the epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Timestamp(micros)
    }

    /// Microseconds since the epoch.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// The date of the timestamp.
    pub fn date(self) -> Date {
        const DAY_MICROS: i64 = 86_400_000_000;
        // 2⁶³ microseconds are about a hundred million days.
        Date(self.0.div_euclid(DAY_MICROS) as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_of_the_calendar() {
        for (days, ymd) in [
            (0, (1970, 1, 1)),
            (-1, (1969, 12, 31)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (18_019, (2019, 5, 3)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
            (-719_468, (0, 3, 1)),
            (-719_529, (-1, 12, 31)),
            (2_932_896, (9999, 12, 31)),
            (i32::MAX, (5_881_580, 7, 11)),
            (i32::MIN, (-5_877_641, 6, 23)),
        ] {
            assert_eq!(Date::from_days(days).ymd(), ymd, "{days}");
            let (year, month, day) = ymd;
            assert_eq!(Date::from_ymd(year, month, day), Some(Date::from_days(days)), "{ymd:?}");
        }
        for (year, month, day) in
            [(2019, 2, 29), (2100, 2, 29), (2019, 4, 31), (2019, 0, 1), (2019, 13, 1), (2019, 1, 0), (2019, 1, 32)]
        {
            assert_eq!(Date::from_ymd(year, month, day), None, "{year}-{month}-{day}");
        }
        for (year, month, day) in [(i32::MAX, 12, 31), (i32::MIN, 1, 1), (5_881_580, 7, 12), (2019, 1, u32::MAX)] {
            assert_eq!(Date::from_ymd(year, month, day), None, "{year}-{month}-{day}");
        }
        // Consecutive days have increasing dates.
        let mut last = Date::from_days(-150_000).ymd();
        for days in -149_999..150_000 {
            let ymd = Date::from_days(days).ymd();
            assert!(ymd > last, "{ymd:?} after {last:?}");
            assert_eq!(Date::from_ymd(ymd.0, ymd.1, ymd.2).map(Date::days), Some(days));
            last = ymd;
        }
    }

    #[test]
    fn times_are_split_into_days() {
        for (micros, days) in [(0, 0), (-1, -1), (86_399_999_999, 0), (86_400_000_000, 1), (i64::MIN, -106_751_992)] {
            assert_eq!(Timestamp::from_micros(micros).date().days(), days, "{micros}");
        }
    }
}
