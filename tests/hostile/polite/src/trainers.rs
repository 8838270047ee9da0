//! Trainers that never return, and models with invalid content.

use std::hint::black_box;

use sandbar_guest::prelude::*;

/// Predicts zero.
#[derive(Serialize, Deserialize)]
pub struct Zero {}

impl Model for Zero {
    fn predict(&self, _features: Features<'_>, out: &mut [f64]) {
        out.fill(0.0);
    }
}

/// Never returns.
#[trainer]
pub fn fit_loops(_group: &Group<'_>) -> Result<Zero, String> {
    while black_box(true) {
        std::hint::spin_loop();
    }
    Ok(Zero {})
}

/// Sleeps for a moment.
#[trainer]
pub fn fit_sleeps(_group: &Group<'_>) -> Result<Zero, String> {
    std::thread::sleep(std::time::Duration::from_millis(10));
    Ok(Zero {})
}

/// Sleeps for an hour.
#[trainer]
pub fn fit_sleeps_long(_group: &Group<'_>) -> Result<Zero, String> {
    std::thread::sleep(std::time::Duration::from_secs(3600));
    Ok(Zero {})
}

/// Logs its target; never returns if that is seven.
#[trainer]
pub fn fit_dislikes_seven(group: &Group<'_>) -> Result<Zero, String> {
    let first = group.target()[0];
    sandbar_guest::log::info!("it starts with {first}");
    while black_box(first == 7.0) {
        std::hint::spin_loop();
    }
    Ok(Zero {})
}

/// Allocates until there is no memory left.
#[trainer]
pub fn fit_takes_memory(_group: &Group<'_>) -> Result<Zero, String> {
    let mut taken = Vec::new();
    loop {
        taken.push(vec![black_box(1u8); 1 << 20]);
        if black_box(&taken).is_empty() {
            return Ok(Zero {});
        }
    }
}

/// Allocates 1 GiB at once.
#[trainer]
pub fn fit_takes_a_gib(_group: &Group<'_>) -> Result<Zero, String> {
    let taken = vec![black_box(1u8); 1 << 30];
    black_box(&taken);
    Ok(Zero {})
}

/// Recurses endlessly.
#[trainer]
pub fn fit_recurses(group: &Group<'_>) -> Result<Zero, String> {
    if deeper(group.seed()) == 1 { Err("it came back".into()) } else { Ok(Zero {}) }
}

#[allow(unconditional_recursion, reason = "that is the attack")]
fn deeper(n: u64) -> u64 {
    let kept = [black_box(n); 8];
    black_box(deeper(black_box(n + 1)) + kept[(n % 8) as usize])
}

/// Panics with a long message.
#[trainer]
pub fn fit_panics(_group: &Group<'_>) -> Result<Zero, String> {
    panic!("{}", "help! ".repeat(1 << 20))
}

/// Panics while it panics.
#[trainer]
pub fn fit_panics_twice(_group: &Group<'_>) -> Result<Zero, String> {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("and again");
        }
    }
    let _bomb = Bomb;
    panic!("once")
}

/// Writes to an address outside its memory.
#[trainer]
pub fn fit_writes_anywhere(_group: &Group<'_>) -> Result<Zero, String> {
    let at = black_box(0xffff_fff0_usize) as *mut u64;
    // SAFETY: the address is outside the memory; the test is about the trap.
    unsafe { at.write_volatile(1) };
    Ok(Zero {})
}

/// Reads rows beyond its group.
#[trainer]
pub fn fit_reads_beyond(group: &Group<'_>) -> Result<Zero, String> {
    let features = group.features();
    let column = features.column(0);
    if column[black_box(features.rows() + 1)].is_nan() { Err("it read on".into()) } else { Ok(Zero {}) }
}

/// A model of 2 MiB.
#[derive(Serialize, Deserialize)]
pub struct Large {
    bytes: Vec<u8>,
}

impl Model for Large {
    fn predict(&self, _features: Features<'_>, out: &mut [f64]) {
        out.fill(self.bytes.len() as f64);
    }
}

/// Fits a model of 2 MiB.
#[trainer]
pub fn model_is_large(_group: &Group<'_>) -> Result<Large, String> {
    Ok(Large { bytes: vec![1; 2 << 20] })
}

/// Misbehaves when it predicts.
#[derive(Serialize, Deserialize)]
pub enum Predicts {
    /// Predicts NaN.
    Nan,
    /// Never returns.
    Loops,
    /// Panics.
    Panics,
}

impl Model for Predicts {
    fn predict(&self, _features: Features<'_>, out: &mut [f64]) {
        match self {
            Predicts::Nan => out.fill(f64::NAN),
            Predicts::Loops => {
                while black_box(true) {
                    std::hint::spin_loop();
                }
            }
            Predicts::Panics => panic!("I see nothing"),
        }
    }
}

/// Fits a model that predicts NaN.
#[trainer]
pub fn predicts_nan(_group: &Group<'_>) -> Result<Predicts, String> {
    Ok(Predicts::Nan)
}

/// Fits a model whose predictions never return.
#[trainer]
pub fn predict_loops(_group: &Group<'_>) -> Result<Predicts, String> {
    Ok(Predicts::Loops)
}

/// Fits a model whose predictions panic.
#[trainer]
pub fn predict_panics(_group: &Group<'_>) -> Result<Predicts, String> {
    Ok(Predicts::Panics)
}

/// A model whose parameters are not valid JSON.
#[derive(Serialize, Deserialize)]
pub struct Unspeakable {}

impl Model for Unspeakable {
    fn predict(&self, _features: Features<'_>, out: &mut [f64]) {
        out.fill(0.0);
    }

    fn params(&self) -> impl Serialize {
        std::collections::BTreeMap::from([((1, 2), 3)])
    }
}

/// Fits a model whose parameters can't be serialized.
#[trainer]
pub fn params_unspeakable(_group: &Group<'_>) -> Result<Unspeakable, String> {
    Ok(Unspeakable {})
}
