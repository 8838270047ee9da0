use sandbar_guest::prelude::*;

struct NoModel;

#[trainer]
fn returns_no_model(_group: &Group<'_>) -> NoModel {
    NoModel
}

#[trainer]
fn returns_nothing(_group: &Group<'_>) {}

#[trainer]
fn takes_a_batch(_batch: RecordBatch) -> Result<Constant, String> {
    Ok(Constant)
}

#[derive(Serialize, Deserialize)]
struct Constant;

impl Model for Constant {
    fn predict(&self, _features: Features<'_>, out: &mut [f64]) {
        out.fill(1.0);
    }
}

fn main() {}
