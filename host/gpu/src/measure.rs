//! Whether a device computes right, and how fast.

use std::time::{Duration, Instant};

use sandbar_dense::{Costs, Dtype, Kind, Map, Op, Owned, Spec, Step, Tensor, cpu};

use crate::{DeviceTensor, GpuError, Stream};

/// Something is done more often, or with more, until it takes so long.
const LONG_ENOUGH: Duration = Duration::from_millis(20);
/// A device is warm when it has multiplied no faster for so long: the clocks of an idle GPU are a fifth of those of a busy
/// one, and take their time to rise.
const STEADY: Duration = Duration::from_millis(300);
/// How long it may take to be warm.
const WARM_UP_MAX: Duration = Duration::from_secs(2);
/// Sides of matrices that are multiplied: the first, and the last that is tried.
const SIDE: u32 = 256;
const SIDE_MAX: u32 = 4096;
/// Values that are copied, of four bytes each.
const COPIED: u32 = 1 << 18;
const COPIED_MAX: u32 = 1 << 26;
/// Bytes of what is moved to the device and back.
const MOVED_BYTES_MAX: usize = 1 << 24;
/// How often something is done that is over quickly.
const TIMES: u32 = 16;
/// Centres of the canary: more turns of a loop than some drivers take right.
const TURNS: u32 = 70_000;
/// Products of the canary of matrix units: the sizes of what is multiplied, none of them whole tiles, and whether it is
/// transposed. So they have tiles of both sizes, and operands in all the ways in which they may lie.
const PRODUCTS: [[(&[u32], bool); 2]; 4] = [
    [(&[70, 90], false), (&[68, 90], true)],
    [(&[72, 65], true), (&[72, 81], false)],
    [(&[32, 129, 40], false), (&[32, 40, 132], false)],
    [(&[32, 41, 136], true), (&[130, 41], true)],
];
/// From -3 to 3, in f16.
const WHOLE: [u16; 7] = [0xc200, 0xc000, 0xbc00, 0, 0x3c00, 0x4000, 0x4200];

impl Stream {
    /// Does a little of what devices and drivers are known to do wrong. From then on matrix units are used, if there are any
    /// and they multiply right.
    ///
    /// # Errors
    /// [`GpuError::Unusable`] when something else comes of it than there should, and when it can't be done.
    pub fn check_device(&mut self) -> Result<(), GpuError> {
        let wrong = |what: &str| GpuError::Unusable(format!("the GPU computes wrong: {what}"));
        // The nearest of many points on a line is the last.
        let line: Vec<f32> = (1..=TURNS).rev().map(|at| at as f32).collect();
        let (points, centres) = (self.of(&[1, 1], &[0.0])?, self.of(&[TURNS, 1], &line)?);
        let mut place = [0; 4];
        let found = self.run(&Op::Nearest, &[&points, &centres])?;
        self.download(&found[0], 0, &mut place)?;
        if u32::from_le_bytes(place) != TURNS - 1 {
            return Err(wrong("a loop of many turns"));
        }
        // Whole numbers, whose products are exact.
        let side = 65_u32;
        let whole = |at: u32| (at * 7919 % 13) as f32 - 6.0;
        let values: Vec<f32> = (0..side * side).map(whole).collect();
        let square = self.of(&[side, side], &values)?;
        let product =
            self.run(&Op::Product { first_transposed: false, second_transposed: true }, &[&square, &square])?;
        let mut bytes = vec![0; 4 * values.len()];
        self.download(&product[0], 0, &mut bytes)?;
        let row = |at: usize| &values[at * side as usize..][..side as usize];
        for (at, bytes) in bytes.as_chunks().0.iter().enumerate() {
            let (left, right) = (row(at / side as usize), row(at % side as usize));
            let due: f32 = left.iter().zip(right).map(|(left, right)| left * right).sum();
            if f32::from_le_bytes(*bytes) != due {
                return Err(wrong("a product of matrices"));
            }
        }
        self.check_units()
    }

    /// Has matrix units used if they multiply right: without them the device is as good as others.
    fn check_units(&mut self) -> Result<(), GpuError> {
        let device = self.device().clone();
        device.use_units(true);
        if device.units().is_none() {
            return Ok(());
        }
        // Nor is it lost when its driver does not take their kernels.
        let scope = device.inner.push_error_scope(wgpu::ErrorFilter::Validation);
        let internal = device.inner.push_error_scope(wgpu::ErrorFilter::Internal);
        let is_right = self.multiplies_right();
        let errors = [pollster::block_on(internal.pop()), pollster::block_on(scope.pop())];
        device.use_units(is_right.is_ok_and(|is_right| is_right) && errors.iter().all(Option::is_none));
        device.check()
    }

    /// Whether products of f16 are those of the processor: of whole numbers they are exact.
    fn multiplies_right(&mut self) -> Result<bool, GpuError> {
        for [(first, first_transposed), (second, second_transposed)] in PRODUCTS {
            let op = Op::Product { first_transposed, second_transposed };
            let specs = [Spec::new(Dtype::F16, first)?, Spec::new(Dtype::F16, second)?];
            let values = specs.map(|spec| {
                let bits = (0..spec.shape.count()).map(|at| WHOLE[at * 7919 % 6151 % WHOLE.len()]);
                bits.flat_map(u16::to_le_bytes).collect::<Vec<u8>>()
            });
            let owned = values.each_ref().map(|bytes| Owned::from_bytes(Dtype::F16, bytes));
            let inputs = [Tensor::new(specs[0], owned[0].values())?, Tensor::new(specs[1], owned[1].values())?];
            let due = cpu::run(&op, &inputs)?;
            let tensors = [self.tensor(specs[0])?, self.tensor(specs[1])?];
            for (tensor, bytes) in tensors.iter().zip(&values) {
                self.write(tensor, 0, bytes)?;
            }
            let found = self.run(&op, &tensors.each_ref())?;
            let mut bytes = vec![0; found[0].spec().bytes() as usize];
            self.download(&found[0], 0, &mut bytes)?;
            if due[0] != Owned::from_bytes(Dtype::F16, &bytes) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn of(&mut self, sizes: &[u32], values: &[f32]) -> Result<DeviceTensor, GpuError> {
        let tensor = self.tensor(Spec::new(Dtype::F32, sizes)?)?;
        self.write(&tensor, 0, bytemuck::cast_slice(values))?;
        Ok(tensor)
    }

    /// Measures what the device takes for what it does: within a few seconds, on a software driver too.
    ///
    /// # Errors
    /// Those of the operations.
    pub fn measure(&mut self) -> Result<Costs, GpuError> {
        self.warm_up()?;
        let copy = Op::Map(Map::new(vec![Step::Input(0)])?);
        let little = self.of(&[1], &[1.0])?;
        let fixed = self.least(|stream| {
            let out = stream.run(&copy, &[&little])?;
            stream.download(&out[0], 0, &mut [0; 4])
        })?;
        let (copied, taken) = self.copied(&copy)?;
        let memory = 2.0 * copied as f64 / taken.as_secs_f64();
        // Far fewer bytes go over a bus in that time.
        let mut bytes = vec![0; copied.min(MOVED_BYTES_MAX)];
        let values = self.tensor(Spec::new(Dtype::F32, &[bytes.len() as u32 / 4])?)?;
        // Where it takes hardly longer than a little thing, that says nothing of the rest.
        let rate = |bytes: &[u8], taken: Duration| {
            bytes.len() as f64 / taken.saturating_sub(fixed).max(taken / 4).as_secs_f64()
        };
        let taken = self.least(|stream| {
            stream.write(&values, 0, &bytes)?;
            stream.wait()
        })?;
        let up = rate(&bytes, taken);
        let taken = self.least(|stream| stream.download(&values, 0, &mut bytes))?;
        let down = rate(&bytes, taken);
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

    /// Multiplies until that gets no faster.
    fn warm_up(&mut self) -> Result<(), GpuError> {
        if self.device().about().kind == Kind::Software {
            return Ok(());
        }
        let op = Op::Product { first_transposed: false, second_transposed: false };
        let square = self.of(&[4 * SIDE, 4 * SIDE], &vec![0.0; (16 * SIDE * SIDE) as usize])?;
        let begun = Instant::now();
        let (mut least, mut since) = (Duration::MAX, begun);
        while since.elapsed() < STEADY && begun.elapsed() < WARM_UP_MAX {
            let taken = self.often(&op, &[&square, &square])?;
            if taken < least - least / 50 {
                (least, since) = (taken, Instant::now());
            }
        }
        Ok(())
    }

    /// Bytes of the largest copy within the limit of memory, or of the first one that takes long enough, and how long it takes.
    fn copied(&mut self, copy: &Op) -> Result<(usize, Duration), GpuError> {
        let mut last = None;
        let mut count = COPIED;
        loop {
            let bytes = 4 * count as usize;
            match self.copy_duration(copy, count) {
                Ok(taken) if taken > LONG_ENOUGH / TIMES || count == COPIED_MAX => return Ok((bytes, taken)),
                Ok(taken) => last = Some((bytes, taken)),
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

    /// Additions and multiplications a second in products of square matrices: the largest within the limit of memory, or
    /// the first that take long enough.
    fn product_rate(&mut self, dtype: Dtype) -> Result<f64, GpuError> {
        let mut last = None;
        let mut side = SIDE;
        loop {
            let taken = match self.product_duration(dtype, side) {
                Ok(taken) => taken,
                Err(error) => return last.ok_or(error),
            };
            let rate = 2.0 * f64::from(side).powi(3) / taken.as_secs_f64();
            if taken > LONG_ENOUGH || side == SIDE_MAX {
                return Ok(rate);
            }
            last = Some(rate);
            side *= 2;
        }
    }

    fn product_duration(&mut self, dtype: Dtype, side: u32) -> Result<Duration, GpuError> {
        let op = Op::Product { first_transposed: false, second_transposed: false };
        let square = self.tensor(Spec::new(dtype, &[side, side])?)?;
        // Memory that was in use may hold numbers that are slow.
        self.write(&square, 0, &vec![0; square.spec().bytes() as usize])?;
        self.least(|stream| {
            stream.run(&op, &[&square, &square])?;
            stream.wait()
        })
    }

    /// What one of several in a row takes.
    fn often(&mut self, op: &Op, inputs: &[&DeviceTensor]) -> Result<Duration, GpuError> {
        let taken = self.least(|stream| {
            for _ in 0..TIMES {
                stream.run(op, inputs)?;
            }
            stream.wait()
        })?;
        Ok(taken / TIMES)
    }

    /// The least that something took, the first time not counted.
    fn least(&mut self, mut act: impl FnMut(&mut Stream) -> Result<(), GpuError>) -> Result<Duration, GpuError> {
        act(self)?;
        let (mut least, all) = (Duration::MAX, Instant::now());
        while all.elapsed() < LONG_ENOUGH {
            let begun = Instant::now();
            act(self)?;
            least = least.min(begun.elapsed());
        }
        Ok(least)
    }
}
