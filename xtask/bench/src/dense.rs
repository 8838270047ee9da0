//! Least squares of many small groups: by the host's operation, and by a trainer, in a sandbox and natively.

use std::hint::black_box;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, RecordBatch};
use models::linear::LinearParams;
use sandbar_core::Seed;
use sandbar_dense::{DeviceChoice, Dtype, GroupedOptions, Op, Session, Spec, Tensor, Values};
use sandbar_guest::Features;
use sandbar_sandbox::{GroupRange, Input, Predictions, Refusal, Services};

use crate::failure::Failure;
use crate::paths;
use crate::report::Report;
use crate::sandbox::{Data, LoadedGuest};
use crate::timing::{Effort, least_alternating};

/// Rows of a group.
const ROWS: usize = 64;
/// Features of a group.
const WIDTH: usize = 8;

pub fn run(report: Report, effort: Effort) -> Result<(), Failure> {
    let groups = effort.fits;
    let rows = groups * ROWS;
    let mut random = Seed::new(1);
    let column = |random: &mut Seed| -> Vec<f64> { (0..rows).map(|_| f64::from(random.below(1 << 20))).collect() };
    let columns: Vec<Vec<f64>> = (0..=WIDTH).map(|_| column(&mut random)).collect();

    let offsets: Vec<u32> = (0..=groups).map(|group| (group * ROWS) as u32).collect();
    let (all, target) = (columns[..WIDTH].concat(), &columns[WIDTH]);
    let op = Op::GroupedLeastSquares(GroupedOptions { intercept: true, ridge: 0.0, pivot_min: 0.0 });
    let tensor = |dtype, sizes: &[usize], values| -> Result<Tensor<'_>, Failure> {
        let sizes: Vec<u32> = sizes.iter().map(|size| *size as u32).collect();
        Ok(Tensor::new(Spec::new(dtype, &sizes)?, values)?)
    };
    let inputs = [
        tensor(Dtype::F64, &[WIDTH, rows], Values::F64(&all))?,
        tensor(Dtype::F64, &[rows], Values::F64(target))?,
        tensor(Dtype::U32, &[groups + 1], Values::U32(&offsets))?,
    ];
    let mut host =
        || drop(black_box(sandbar_dense::cpu::run(&op, black_box(&inputs)).expect("the operation accepts its inputs")));

    let params = LinearParams::default();
    let mut native = || {
        for group in 0..groups {
            let features = Features::new(&all[group * ROWS..], rows, ROWS, WIDTH);
            let target = &target[group * ROWS..][..ROWS];
            black_box(params.fit_features(black_box(features), target).expect("there are enough rows"));
        }
    };

    let guest = LoadedGuest::new(&paths::guest("udfs/models")?)?;
    let arrays = columns.iter().map(|column| Arc::new(Float64Array::from(column.clone())) as ArrayRef);
    let batch = RecordBatch::try_from_iter(arrays.enumerate().map(|(at, array)| (format!("c{at}"), array)))?;
    let encoded = sandbar_batch::encode(&batch)?;
    let data = Data::new(&encoded.body())?;
    let linear = guest.function("linear")?;
    let fit = |device: Option<DeviceChoice>| {
        let session = Session::new(None, device, u64::MAX);
        let services = TrainerServices { data: data.clone(), groups, fitted: 0, session };
        let instance = guest.program.instantiate(Box::new(services), &guest.limits, 0);
        let mut instance = instance.expect("the pool has a free slot");
        instance.open(linear, "{}", 0).expect("`linear` is a trainer");
        instance.fit(&encoded.header).expect("the trainer fits all groups");
    };
    let (mut sandboxed, mut together) = (|| fit(None), || fit(Some(DeviceChoice::Cpu)));
    let all: [&mut dyn FnMut(); 4] = [&mut host, &mut native, &mut sandboxed, &mut together];
    let [host, native, sandboxed, together] =
        least_alternating(effort.time, all).map(|seconds| groups as f64 / seconds);
    let name = format!("dense/{groups} fits of {ROWS} x {WIDTH}");
    report.compare(&name, host, "/s", "a trainer in a sandbox", sandboxed);
    report.compare(&name, host, "/s", "a trainer outside of one", native);
    let name = format!("{name} by the host, and the models");
    report.compare(&name, together, "/s", "a trainer in a sandbox", sandboxed);
    Ok(())
}

/// Services of a trainer: passes it one group after another and discards its models.
struct TrainerServices {
    data: Arc<Data>,
    groups: usize,
    fitted: usize,
    session: Session,
}

impl TrainerServices {
    fn at(&self, group: usize) -> GroupRange {
        GroupRange { first_row: (group * ROWS) as u32, train_rows: ROWS as u32, test_rows: 0, seed: 0 }
    }
}

impl Services for TrainerServices {
    fn input(&self) -> Input<'_> {
        self.data.input()
    }

    fn next_group(&mut self) -> Result<Option<GroupRange>, Refusal> {
        Ok((self.fitted < self.groups).then(|| self.at(self.fitted)))
    }

    fn groups_ahead(&self) -> Result<Vec<GroupRange>, Refusal> {
        Ok((self.fitted..self.groups).map(|group| self.at(group)).collect())
    }

    fn dense(&mut self) -> Option<&mut Session> {
        Some(&mut self.session)
    }

    fn fitted(&mut self, model: &[u8], params: &str, _: Predictions<'_>) -> Result<(), Refusal> {
        black_box((model, params));
        self.fitted += 1;
        Ok(())
    }
}
