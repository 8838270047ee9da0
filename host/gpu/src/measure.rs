//! Correctness check and performance measurement of a device.

use std::time::{Duration, Instant};

use sandbar_dense::{Costs, DeviceKind, Dtype, Map, Op, OwnedValues, Spec, Step, Tensor, cpu};

use crate::{DeviceTensor, GpuError, Stream};

/// Minimum duration of a measurement; smaller ones are repeated or enlarged.
const LONG_ENOUGH: Duration = Duration::from_millis(20);
/// Warm-up ends when products have not become faster for this long. The clock rates of an idle GPU are a fifth of those of
/// a busy one, and rise over hundreds of milliseconds.
const STEADY: Duration = Duration::from_millis(300);
/// Limit of the warm-up.
const WARM_UP_MAX: Duration = Duration::from_secs(2);
/// Initial and maximum side of the measured matrix products.
const SIDE: u32 = 256;
const SIDE_MAX: u32 = 4096;
/// Initial and maximum number of copied values, of four bytes each.
const COPY_VALUES: u32 = 1 << 18;
const COPY_VALUES_MAX: u32 = 1 << 26;
/// Maximum bytes of measured transfers.
const TRANSFER_BYTES_MAX: usize = 1 << 24;
/// Repetitions of short operations.
const REPETITIONS: u32 = 16;
/// Number of centres in the loop check: more iterations than some drivers execute correctly.
const LOOP_ITERATIONS: u32 = 70_000;
/// Products for checking matrix units: sizes, none of them whole tiles, and transpositions. They cover both tile sizes
/// and all operand layouts.
const PRODUCTS: [[(&[u32], bool); 2]; 4] = [
    [(&[70, 90], false), (&[68, 90], true)],
    [(&[72, 65], true), (&[72, 81], false)],
    [(&[32, 129, 40], false), (&[32, 40, 132], false)],
    [(&[32, 41, 136], true), (&[130, 41], true)],
];
/// Whole numbers from -3 to 3, in f16.
const WHOLE: [u16; 7] = [0xc200, 0xc000, 0xbc00, 0, 0x3c00, 0x4000, 0x4200];

impl Stream {
    /// Runs small operations that devices and drivers are known to compute wrong. Afterwards matrix units are in use,
    /// if the device has them and they passed.
    ///
    /// # Errors
    /// [`GpuError::Unusable`] for a wrong result, and errors of the operations.
    pub fn check_device(&mut self) -> Result<(), GpuError> {
        let wrong = |reason: &str| GpuError::Unusable(format!("the GPU computes wrong results: {reason}"));
        // The nearest of many points on a line is the last.
        let line: Vec<f32> = (1..=LOOP_ITERATIONS).rev().map(|at| at as f32).collect();
        let (points, centres) = (self.upload(&[1, 1], &[0.0])?, self.upload(&[LOOP_ITERATIONS, 1], &line)?);
        let mut place = [0; 4];
        let found = self.run(&Op::Nearest, &[&points, &centres])?;
        self.download(&found[0], 0, &mut place)?;
        if u32::from_le_bytes(place) != LOOP_ITERATIONS - 1 {
            return Err(wrong("a long loop"));
        }
        // Whole numbers have exact products.
        let side = 65_u32;
        let whole = |at: u32| (at * 7919 % 13) as f32 - 6.0;
        let values: Vec<f32> = (0..side * side).map(whole).collect();
        let square = self.upload(&[side, side], &values)?;
        let product =
            self.run(&Op::Product { first_transposed: false, second_transposed: true }, &[&square, &square])?;
        let mut bytes = vec![0; 4 * values.len()];
        self.download(&product[0], 0, &mut bytes)?;
        let row = |at: usize| &values[at * side as usize..][..side as usize];
        for (at, bytes) in bytes.as_chunks().0.iter().enumerate() {
            let (left, right) = (row(at / side as usize), row(at % side as usize));
            let expected: f32 = left.iter().zip(right).map(|(left, right)| left * right).sum();
            if f32::from_le_bytes(*bytes) != expected {
                return Err(wrong("a product of matrices"));
            }
        }
        self.check_units()
    }

    /// Enables matrix units if they multiply correctly; the device is usable without them.
    fn check_units(&mut self) -> Result<(), GpuError> {
        let device = self.device().clone();
        device.use_units(true);
        if device.units().is_none() {
            return Ok(());
        }
        // A driver that rejects the kernels does not make the device unusable.
        let scope = device.inner.push_error_scope(wgpu::ErrorFilter::Validation);
        let internal = device.inner.push_error_scope(wgpu::ErrorFilter::Internal);
        let is_right = self.multiplies_right();
        let errors = [pollster::block_on(internal.pop()), pollster::block_on(scope.pop())];
        device.use_units(is_right.is_ok_and(|is_right| is_right) && errors.iter().all(Option::is_none));
        device.check()
    }

    /// Whether products of f16 equal the processor's. Products of whole numbers are exact.
    fn multiplies_right(&mut self) -> Result<bool, GpuError> {
        for [(first, first_transposed), (second, second_transposed)] in PRODUCTS {
            let op = Op::Product { first_transposed, second_transposed };
            let specs = [Spec::new(Dtype::F16, first)?, Spec::new(Dtype::F16, second)?];
            let values = specs.map(|spec| {
                let bits = (0..spec.shape.count()).map(|at| WHOLE[at * 7919 % 6151 % WHOLE.len()]);
                bits.flat_map(u16::to_le_bytes).collect::<Vec<u8>>()
            });
            let owned = values.each_ref().map(|bytes| OwnedValues::from_bytes(Dtype::F16, bytes));
            let inputs = [Tensor::new(specs[0], owned[0].values())?, Tensor::new(specs[1], owned[1].values())?];
            let expected = cpu::run(&op, &inputs)?;
            let tensors = [self.tensor(specs[0])?, self.tensor(specs[1])?];
            for (tensor, bytes) in tensors.iter().zip(&values) {
                self.write(tensor, 0, bytes)?;
            }
            let found = self.run(&op, &tensors.each_ref())?;
            let mut bytes = vec![0; found[0].spec().bytes() as usize];
            self.download(&found[0], 0, &mut bytes)?;
            if expected[0] != OwnedValues::from_bytes(Dtype::F16, &bytes) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn upload(&mut self, sizes: &[u32], values: &[f32]) -> Result<DeviceTensor, GpuError> {
        let tensor = self.tensor(Spec::new(Dtype::F32, sizes)?)?;
        self.write(&tensor, 0, bytemuck::cast_slice(values))?;
        Ok(tensor)
    }

    /// Measures the device's costs, within a few seconds even on a software driver.
    ///
    /// # Errors
    /// Errors of the operations.
    pub fn measure(&mut self) -> Result<Costs, GpuError> {
        self.warm_up()?;
        let copy = Op::Map(Map::new(vec![Step::Input(0)])?);
        let little = self.upload(&[1], &[1.0])?;
        let fixed = self.least(|stream| {
            let out = stream.run(&copy, &[&little])?;
            stream.download(&out[0], 0, &mut [0; 4])
        })?;
        let (copied, duration) = self.largest_copy(&copy)?;
        let memory = 2.0 * copied as f64 / duration.as_secs_f64();
        // Transfers over a bus move far fewer bytes in that time.
        let mut bytes = vec![0; copied.min(TRANSFER_BYTES_MAX)];
        let values = self.tensor(Spec::new(Dtype::F32, &[bytes.len() as u32 / 4])?)?;
        // A transfer that takes hardly longer than the fixed cost does not show the rate.
        let rate = |bytes: &[u8], duration: Duration| {
            bytes.len() as f64 / duration.saturating_sub(fixed).max(duration / 4).as_secs_f64()
        };
        let duration = self.least(|stream| {
            stream.write(&values, 0, &bytes)?;
            stream.wait()
        })?;
        let up = rate(&bytes, duration);
        let duration = self.least(|stream| stream.download(&values, 0, &mut bytes))?;
        let down = rate(&bytes, duration);
        let f32_operations_s = self.product_rate(Dtype::F32)?;
        let (has_f16, has_f64) = (self.device().about().has_f16, self.device().about().has_f64);
        let mut rate = |dtype, is_there| if is_there { self.product_rate(dtype) } else { Ok(0.0) };
        Ok(Costs {
            fixed_nanos: fixed.as_nanos() as f64,
            up_bytes_s: up,
            down_bytes_s: down,
            memory_bytes_s: memory,
            f16_operations_s: rate(Dtype::F16, has_f16)?,
            f32_operations_s,
            f64_operations_s: rate(Dtype::F64, has_f64)?,
        })
    }

    /// Computes products until they do not become faster.
    fn warm_up(&mut self) -> Result<(), GpuError> {
        if self.device().about().kind == DeviceKind::Software {
            return Ok(());
        }
        let op = Op::Product { first_transposed: false, second_transposed: false };
        let square = self.upload(&[4 * SIDE, 4 * SIDE], &vec![0.0; (16 * SIDE * SIDE) as usize])?;
        let started = Instant::now();
        let (mut least, mut improved) = (Duration::MAX, started);
        while improved.elapsed() < STEADY && started.elapsed() < WARM_UP_MAX {
            let duration = self.often(&op, &[&square, &square])?;
            if duration < least - least / 50 {
                (least, improved) = (duration, Instant::now());
            }
        }
        Ok(())
    }

    /// Returns size and duration of the largest copy within the memory limit, or of the first that takes long enough.
    fn largest_copy(&mut self, copy: &Op) -> Result<(usize, Duration), GpuError> {
        let mut last = None;
        let mut count = COPY_VALUES;
        loop {
            let bytes = 4 * count as usize;
            match self.copy_duration(copy, count) {
                Ok(duration) if duration > LONG_ENOUGH / REPETITIONS || count == COPY_VALUES_MAX => {
                    return Ok((bytes, duration));
                }
                Ok(duration) => last = Some((bytes, duration)),
                Err(error) => return last.ok_or(error),
            }
            count *= 2;
        }
    }

    fn copy_duration(&mut self, copy: &Op, count: u32) -> Result<Duration, GpuError> {
        let values = self.tensor(Spec::new(Dtype::F32, &[count])?)?;
        self.write(&values, 0, &vec![0; 4 * count as usize])?;
        self.often(copy, &[&values])
    }

    /// Returns the operations per second in products of square matrices: of the largest within the memory limit, or of
    /// the first that takes long enough.
    fn product_rate(&mut self, dtype: Dtype) -> Result<f64, GpuError> {
        let mut last = None;
        let mut side = SIDE;
        loop {
            let duration = match self.product_duration(dtype, side) {
                Ok(duration) => duration,
                Err(error) => return last.ok_or(error),
            };
            let rate = 2.0 * f64::from(side).powi(3) / duration.as_secs_f64();
            if duration > LONG_ENOUGH || side == SIDE_MAX {
                return Ok(rate);
            }
            last = Some(rate);
            side *= 2;
        }
    }

    fn product_duration(&mut self, dtype: Dtype, side: u32) -> Result<Duration, GpuError> {
        let op = Op::Product { first_transposed: false, second_transposed: false };
        let square = self.tensor(Spec::new(dtype, &[side, side])?)?;
        // Stale memory may contain denormal numbers, which are slow.
        self.write(&square, 0, &vec![0; square.spec().bytes() as usize])?;
        self.least(|stream| {
            stream.run(&op, &[&square, &square])?;
            stream.wait()
        })
    }

    /// Returns the average duration of several runs in a row.
    fn often(&mut self, op: &Op, inputs: &[&DeviceTensor]) -> Result<Duration, GpuError> {
        let duration = self.least(|stream| {
            for _ in 0..REPETITIONS {
                stream.run(op, inputs)?;
            }
            stream.wait()
        })?;
        Ok(duration / REPETITIONS)
    }

    /// Returns the minimum duration of several runs, after a warm-up.
    fn least(&mut self, mut act: impl FnMut(&mut Stream) -> Result<(), GpuError>) -> Result<Duration, GpuError> {
        act(self)?;
        let (mut least, total) = (Duration::MAX, Instant::now());
        while total.elapsed() < LONG_ENOUGH {
            let started = Instant::now();
            act(self)?;
            least = least.min(started.elapsed());
        }
        Ok(least)
    }
}
