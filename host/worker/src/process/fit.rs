//! Fits and predicts groups: the guest pulls them one after another, each result is scored at once, and a trap costs
//! only the current group.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use arrow_array::builder::{BinaryBuilder, Float64Builder, ListBuilder, StringBuilder, UInt32Builder};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::ArrowError;
use sandbar_core::{Code, Fault, Limits};
use sandbar_dense::Session;
use sandbar_dense::remote::Broker;
use sandbar_sandbox::{GroupRange, Input, Instance, Level, Predictions, Program, Refusal, Services};
use sandbar_store::SharedMemory;

use super::bound_function::BoundFunction;
use super::dense::Dense;
use super::input::CallInput;
use super::outcome::{Outcome, shortened};
use crate::journal;
use crate::mutex::lock;
use crate::protocol::{Call, Groups, progress};

/// Maximum bytes of a model's parameters.
const PARAMS_BYTES_MAX: usize = 1 << 20;
/// Maximum nesting of a model's parameters; JSON readers fail at about 128.
const PARAMS_DEPTH_MAX: usize = 64;
/// Bytes of a test target, and of an offset of stored models.
const TARGET_BYTES: usize = 8;
const OFFSET_BYTES: usize = 8;
/// Bytes of a result row without its model.
const ROW_BYTES: usize = 64;
/// Maximum bytes of the results of a call: its models are one column, whose offsets have 32 bits.
const RESULTS_BYTES_MAX: u64 = i32::MAX as u64;

pub(super) struct GroupCall<'a> {
    pub groups: &'a Groups,
    pub predict: bool,
    pub broker: &'a Broker,
}

/// Runs all groups in one sandbox, or in further ones after traps.
pub(super) fn run(
    program: &Program,
    binding: &BoundFunction,
    call: &Call,
    input: CallInput,
    job: GroupCall<'_>,
    progress: &Arc<SharedMemory>,
    outcome: &mut Outcome,
) -> Result<(), Fault> {
    let input = Arc::new(input);
    let feed = GroupFeed::new(
        &input,
        &binding.limits,
        &job,
        progress.clone(),
        std::mem::replace(outcome, Outcome::new(binding.limits, None, None)),
    )?;
    let feed = Arc::new(Mutex::new(feed));
    let result = drive(program, binding, call, &input, &job, &feed);
    let mut feed = lock(&feed);
    *outcome = std::mem::replace(&mut feed.outcome, Outcome::new(binding.limits, None, None));
    result?;
    let batch = feed.results.finish().map_err(|e| Fault::new(Code::Host, e.to_string()))?;
    let encoded = sandbar_batch::encode(&batch).map_err(|e| Fault::new(Code::Host, e.to_string()))?;
    let buffers: Vec<&[u8]> = encoded.buffers.iter().map(|(_, b)| b.as_slice()).collect();
    outcome.batch(&encoded.header, &buffers).map_err(Fault::from)
}

fn drive(
    program: &Program,
    binding: &BoundFunction,
    call: &Call,
    input: &Arc<CallInput>,
    job: &GroupCall<'_>,
    feed: &Arc<Mutex<GroupFeed>>,
) -> Result<(), Fault> {
    loop {
        let before = lock(feed).settled;
        let services =
            FeedServices { input: input.clone(), feed: feed.clone(), dense: Dense::new(job.broker, binding) };
        let mut instance = program.instantiate(Box::new(services), &binding.limits, call.seed)?;
        instance.open(binding.function, &binding.params, call.seed)?;
        let result = if job.predict { instance.predict(input.show(0)) } else { instance.fit(input.show(0)) };
        finish(instance, feed);
        let mut feed = lock(feed);
        match (result, feed.current) {
            (Ok(()), None) if feed.is_done() || feed.is_full() => return Ok(()),
            (Ok(()), _) => feed.fail_rest("it returned before all groups were settled"),
            (Err(fault), Some(_)) => feed.settle_failed(&fault),
            (Err(fault), None) if feed.settled == before => return Err(fault),
            (Err(_), None) => {}
        }
        // Groups that are settled by now keep their results, whatever happened to the sandbox.
        if feed.is_done() || feed.is_full() {
            return Ok(());
        }
    }
}

fn finish(instance: Instance<'_>, feed: &Arc<Mutex<GroupFeed>>) {
    lock(feed).outcome.used_memory(instance.memory_bytes());
    drop(instance.into_services());
}

/// The groups of a call, the guest's position among them, and their results.
struct GroupFeed {
    groups: Vec<GroupRange>,
    next: usize,
    /// Index of the group that the guest has not settled yet.
    current: Option<usize>,
    settled: usize,
    input: Arc<CallInput>,
    /// Location of the groups in the input.
    at: Groups,
    extra: Extra,
    /// Bytes of the results so far.
    held_bytes: u64,
    /// Maximum bytes of the results.
    results_bytes_max: u64,
    /// Whether a group is left for another call, because its model exceeded the room that the others left.
    has_left_one: bool,
    model_bytes_max: u64,
    progress: Arc<SharedMemory>,
    results: Results,
    outcome: Outcome,
}

/// Data of each group besides its rows, in the call's input.
enum Extra {
    /// Index of the first test target of each group.
    Targets(Vec<usize>),
    /// Offset in bytes of each group's stored model, and of the end of the last.
    Models(Vec<usize>),
}

impl GroupFeed {
    fn new(
        input: &Arc<CallInput>,
        limits: &Limits,
        job: &GroupCall<'_>,
        progress: Arc<SharedMemory>,
        outcome: Outcome,
    ) -> Result<GroupFeed, Fault> {
        let groups = input.groups(job.groups)?;
        let extra = input.extra(job.groups)?;
        let extra = if job.predict { Extra::models(extra, groups.len())? } else { Extra::targets(extra, &groups)? };
        Ok(GroupFeed {
            results: Results::new(job.predict),
            next: job.groups.first as usize,
            current: None,
            settled: 0,
            input: input.clone(),
            at: job.groups.clone(),
            extra,
            held_bytes: 0,
            results_bytes_max: limits.output_bytes_max.min(RESULTS_BYTES_MAX),
            has_left_one: false,
            model_bytes_max: limits.model_bytes_max,
            progress,
            groups,
            outcome,
        })
    }

    fn is_done(&self) -> bool {
        self.current.is_none() && (self.next..self.groups.len()).all(|g| self.at.without.contains(&(g as u32)))
    }

    /// Returns whether the results are so large that the remaining groups should go into another call. The host chooses
    /// how many groups share a call, so a group must not be refused because of its neighbours' results.
    fn is_full(&self) -> bool {
        self.current.is_none() && (self.has_left_one || self.held_bytes > self.results_bytes_max / 2)
    }

    /// Returns the remaining groups, some of which another call may take.
    fn ahead(&self) -> Vec<GroupRange> {
        let ahead = self.groups.iter().enumerate().skip(self.next);
        ahead.filter(|(at, _)| !self.at.without.contains(&(*at as u32))).map(|(_, group)| *group).collect()
    }

    fn advance(&mut self) -> Option<GroupRange> {
        while self.next < self.groups.len() && self.at.without.contains(&(self.next as u32)) {
            self.next += 1;
        }
        let group = *self.groups.get(self.next)?;
        self.current = Some(self.next);
        self.progress.atomic(progress::GROUP).store(self.next as u64, Relaxed);
        // If this group ends the worker, the groups before it run again and log again.
        journal::clear(&self.progress);
        self.progress.atomic(progress::STEPS).fetch_add(1, Relaxed);
        self.next += 1;
        Some(group)
    }

    fn current_group(&self) -> Result<usize, Refusal> {
        self.current.ok_or_else(|| Refusal::bad_request("it has no current group; request the next one first"))
    }

    fn settle(&mut self) {
        self.current = None;
        self.settled += 1;
    }

    fn settle_failed(&mut self, fault: &Fault) {
        if let Some(group) = self.current {
            let fault = shortened(fault.clone());
            self.held_bytes += (fault.message.len() + ROW_BYTES) as u64;
            self.results.failed(group, &fault);
            self.settle();
        }
    }

    /// Leaves the current group for another call.
    fn leave(&mut self) {
        if let Some(group) = self.current.take() {
            self.next = group;
            self.has_left_one = true;
        }
    }

    fn fail_rest(&mut self, why: &str) {
        let fault = Fault::new(Code::BadOutput, why);
        self.settle_failed(&fault);
        while self.advance().is_some() {
            self.settle_failed(&fault);
        }
    }

    fn fitted(&mut self, model: &[u8], params: &str, predictions: Predictions<'_>) -> Result<(), Refusal> {
        let group = self.current_group()?;
        let due = self.groups[group].test_rows as usize;
        if predictions.count() != Some(due) {
            return Err(Refusal::bad_output(format!(
                "it returned {} predictions for {due} test rows",
                count(&predictions)
            )));
        }
        if model.len() as u64 > self.model_bytes_max {
            let message = format!(
                "its model takes {} bytes, the limit is {} (model_bytes_max)",
                model.len(),
                self.model_bytes_max
            );
            return Err(Refusal { code: Code::OutputLimit, message });
        }
        if params.len() > PARAMS_BYTES_MAX {
            return Err(Refusal::bad_output(format!(
                "the parameters of its model take {} bytes, the limit is {PARAMS_BYTES_MAX}",
                params.len()
            )));
        }
        if serde_json::from_str::<serde::de::IgnoredAny>(params).is_err() {
            return Err(Refusal::bad_output("the parameters of its model are not JSON"));
        }
        if depth(params) > PARAMS_DEPTH_MAX {
            let message = format!("the parameters of its model nest deeper than {PARAMS_DEPTH_MAX} levels");
            return Err(Refusal::bad_output(message));
        }
        let Extra::Targets(starts) = &self.extra else {
            return Err(Refusal::bad_request("this call predicts, it does not fit"));
        };
        let (targets, _) = self.input.extra(&self.at)?.as_chunks::<TARGET_BYTES>();
        let targets = targets[starts[group]..starts[group] + due].iter().map(|target| f64::from_le_bytes(*target));
        match Scores::compute(targets, &predictions) {
            Ok(scores) => {
                let bytes = (params.len() + model.len() + ROW_BYTES) as u64;
                if bytes > self.results_bytes_max {
                    let message = format!(
                        "the result of its model takes {bytes} bytes, the limit is {} (output_bytes_max)",
                        self.results_bytes_max
                    );
                    return Err(Refusal { code: Code::OutputLimit, message });
                }
                if self.held_bytes + bytes > self.results_bytes_max {
                    self.leave();
                    return Ok(());
                }
                self.held_bytes += bytes;
                self.results.fitted(group, &scores, params, model);
                self.settle();
            }
            Err(wrong) => {
                let message = format!("its model predicts NaN or infinity for {wrong} of {due} rows");
                self.settle_failed(&Fault::new(Code::BadOutput, message));
            }
        }
        Ok(())
    }

    fn predicted(&mut self, predictions: Predictions<'_>) -> Result<(), Refusal> {
        let group = self.current_group()?;
        if let Extra::Targets(..) = self.extra {
            return Err(Refusal::bad_request("this call fits, it does not predict"));
        }
        let due = self.groups[group].test_rows as usize;
        if predictions.count() != Some(due) {
            return Err(Refusal::bad_output(format!(
                "it returned {} predictions for {due} test rows",
                count(&predictions)
            )));
        }
        self.held_bytes += (8 * due + ROW_BYTES) as u64;
        self.results.predicted(group, &predictions);
        self.settle();
        Ok(())
    }
}

/// Returns the nesting depth of a valid JSON text.
fn depth(json: &str) -> usize {
    let (mut depth, mut deepest) = (0usize, 0);
    let mut bytes = json.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            // Skips a string: brackets in it do not count.
            b'"' => {
                while let Some(b) = bytes.next().filter(|b| *b != b'"') {
                    if b == b'\\' {
                        bytes.next();
                    }
                }
            }
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

fn count(predictions: &Predictions<'_>) -> String {
    predictions.count().map_or_else(|| "a fractional number of".to_owned(), |n| n.to_string())
}

impl Extra {
    fn targets(bytes: &[u8], groups: &[GroupRange]) -> Result<Extra, Fault> {
        let mut starts = Vec::with_capacity(groups.len());
        let mut start = 0;
        for group in groups {
            starts.push(start);
            start += group.test_rows as usize;
        }
        let there = bytes.len() / TARGET_BYTES;
        if start > there {
            return Err(Fault::new(Code::Host, format!("{there} test targets instead of {start}")));
        }
        Ok(Extra::Targets(starts))
    }

    fn models(bytes: &[u8], groups: usize) -> Result<Extra, Fault> {
        let wrong = || Fault::new(Code::Host, "the stored models of the call are malformed");
        let first = OFFSET_BYTES * (groups + 1);
        let (offsets, models) = bytes.split_at_checked(first).ok_or_else(wrong)?;
        let (offsets, _) = offsets.as_chunks::<OFFSET_BYTES>();
        let offsets: Vec<u64> = offsets.iter().map(|o| u64::from_le_bytes(*o)).collect();
        if !offsets.is_sorted() || offsets.last().is_none_or(|last| *last > models.len() as u64) {
            return Err(wrong());
        }
        Ok(Extra::Models(offsets.into_iter().map(|offset| first + offset as usize).collect()))
    }
}

/// Scores of predictions: mean absolute error, mean squared error, and the coefficient of determination (for a constant
/// target 1 if the fit is perfect and 0 otherwise, as in scikit-learn). `None` without test rows.
struct Scores {
    mae: Option<f64>,
    mse: Option<f64>,
    r2: Option<f64>,
}

impl Scores {
    /// Computes the scores, or returns the number of predictions that are not finite.
    fn compute(
        targets: impl ExactSizeIterator<Item = f64> + Clone,
        predictions: &Predictions<'_>,
    ) -> Result<Scores, usize> {
        if targets.len() == 0 {
            return Ok(Scores { mae: None, mse: None, r2: None });
        }
        let rows = targets.len() as f64;
        let (mut absolute, mut squared, mut sum) = (0.0, 0.0, 0.0);
        for (target, prediction) in targets.clone().zip(predictions.iter()) {
            let error = target - prediction;
            absolute += error.abs();
            squared += error * error;
            sum += target;
        }
        if !absolute.is_finite() {
            let wrong = predictions.iter().filter(|p| !p.is_finite()).count();
            if wrong > 0 {
                return Err(wrong);
            }
        }
        let mean = sum / rows;
        let spread: f64 = targets.map(|t| (t - mean) * (t - mean)).sum();
        let r2 = match (spread == 0.0, squared == 0.0) {
            (false, _) => 1.0 - squared / spread,
            (true, perfect) => f64::from(u8::from(perfect)),
        };
        Ok(Scores { mae: Some(absolute / rows), mse: Some(squared / rows), r2: Some(r2) })
    }
}

/// Result rows, one per settled group. Training: `group, code, error, mae, mse, r2, params, model`; prediction: `group,
/// code, error, predictions`.
struct Results {
    group: UInt32Builder,
    code: StringBuilder,
    error: StringBuilder,
    fit: Option<FitColumns>,
    predictions: Option<ListBuilder<Float64Builder>>,
}

#[derive(Default)]
struct FitColumns {
    mae: Float64Builder,
    mse: Float64Builder,
    r2: Float64Builder,
    params: StringBuilder,
    model: BinaryBuilder,
}

impl Results {
    fn new(predict: bool) -> Results {
        Results {
            group: UInt32Builder::new(),
            code: StringBuilder::new(),
            error: StringBuilder::new(),
            fit: (!predict).then(FitColumns::default),
            predictions: predict.then(|| ListBuilder::new(Float64Builder::new())),
        }
    }

    fn settled(&mut self, group: usize, fault: Option<&Fault>) {
        self.group.append_value(group as u32);
        self.code.append_option(fault.map(|f| f.code.as_str()));
        self.error.append_option(fault.map(|f| f.message.as_str()));
    }

    fn failed(&mut self, group: usize, fault: &Fault) {
        self.settled(group, Some(fault));
        if let Some(fit) = &mut self.fit {
            fit.append(&Scores { mae: None, mse: None, r2: None }, None);
        }
        if let Some(predictions) = &mut self.predictions {
            predictions.append_null();
        }
    }

    fn fitted(&mut self, group: usize, scores: &Scores, params: &str, model: &[u8]) {
        self.settled(group, None);
        if let Some(fit) = &mut self.fit {
            fit.append(scores, Some((params, model)));
        }
    }

    fn predicted(&mut self, group: usize, values: &Predictions<'_>) {
        self.settled(group, None);
        if let Some(predictions) = &mut self.predictions {
            values.iter().for_each(|value| predictions.values().append_value(value));
            predictions.append(true);
        }
    }

    fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        let mut columns: Vec<(&str, ArrayRef, bool)> = vec![
            ("group", Arc::new(self.group.finish()), false),
            ("code", Arc::new(self.code.finish()), true),
            ("error", Arc::new(self.error.finish()), true),
        ];
        if let Some(fit) = &mut self.fit {
            columns.push(("mae", Arc::new(fit.mae.finish()), true));
            columns.push(("mse", Arc::new(fit.mse.finish()), true));
            columns.push(("r2", Arc::new(fit.r2.finish()), true));
            columns.push(("params", Arc::new(fit.params.finish()), true));
            columns.push(("model", Arc::new(fit.model.finish()), true));
        }
        if let Some(predictions) = &mut self.predictions {
            columns.push(("predictions", Arc::new(predictions.finish()), true));
        }
        RecordBatch::try_from_iter_with_nullable(columns)
    }
}

impl FitColumns {
    fn append(&mut self, scores: &Scores, fitted: Option<(&str, &[u8])>) {
        self.mae.append_option(scores.mae);
        self.mse.append_option(scores.mse);
        self.r2.append_option(scores.r2);
        self.params.append_option(fitted.map(|(params, _)| params));
        self.model.append_option(fitted.map(|(_, model)| model));
    }
}

struct FeedServices {
    input: Arc<CallInput>,
    feed: Arc<Mutex<GroupFeed>>,
    dense: Dense,
}

impl Services for FeedServices {
    fn input(&self) -> Input<'_> {
        self.input.shown()
    }

    fn log(&mut self, level: Level, message: &str) {
        lock(&self.feed).outcome.log(level, message);
    }

    fn dense(&mut self) -> Option<&mut Session> {
        Some(self.dense.session())
    }

    fn groups_ahead(&self) -> Result<Vec<GroupRange>, Refusal> {
        Ok(lock(&self.feed).ahead())
    }

    fn next_group(&mut self) -> Result<Option<GroupRange>, Refusal> {
        let mut feed = lock(&self.feed);
        if feed.current.is_some() {
            return Err(Refusal::bad_request("it requests the next group before it has settled the current one"));
        }
        Ok(if feed.is_full() { None } else { feed.advance() })
    }

    fn model(&self) -> Result<Vec<u8>, Refusal> {
        let feed = lock(&self.feed);
        let group = feed.current_group()?;
        let Extra::Models(starts) = &feed.extra else {
            return Err(Refusal::bad_request("this call fits, it has no stored models"));
        };
        Ok(feed.input.extra(&feed.at)?[starts[group]..starts[group + 1]].to_vec())
    }

    fn fitted(&mut self, model: &[u8], params: &str, predictions: Predictions<'_>) -> Result<(), Refusal> {
        lock(&self.feed).fitted(model, params, predictions)
    }

    fn predicted(&mut self, predictions: Predictions<'_>) -> Result<(), Refusal> {
        lock(&self.feed).predicted(predictions)
    }

    fn failed(&mut self, message: &str) -> Result<(), Refusal> {
        let mut feed = lock(&self.feed);
        feed.current_group()?;
        feed.settle_failed(&Fault::new(Code::Refused, message));
        Ok(())
    }
}
