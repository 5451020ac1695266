//! Arrays, which the CPU, the GPU and the Neural Engine share where they can be pictures.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{self, NonNull};

use baton_coreml::mil::{DataType, TensorType};
use baton_coreml::runtime::{RowLayout, picture};
use baton_coreml::{Error, Result};
use block2::RcBlock;
use half::f16;
use objc2::AnyThread;
use objc2::rc::{Retained, autoreleasepool};
use objc2_core_foundation::{CFDictionary, CFRetained, CFString};
use objc2_core_ml::{MLMultiArray, MLMultiArrayDataType};
use objc2_core_video::{
    CVPixelBuffer, CVPixelBufferCreate, kCVPixelBufferIOSurfacePropertiesKey,
    kCVPixelFormatType_OneComponent16Half, kCVReturnSuccess,
};
use objc2_foundation::{NSArray, NSInteger, NSNumber};

use super::answer::failure;
use super::failed;

/// An element that arrays can have.
pub(super) trait Element: Copy {
    const TYPE: MLMultiArrayDataType;
}

impl Element for f16 {
    const TYPE: MLMultiArrayDataType = MLMultiArrayDataType::Float16;
}

impl Element for i32 {
    const TYPE: MLMultiArrayDataType = MLMultiArrayDataType::Int32;
}

/// An array of a type, of zeros.
///
/// # Errors
/// If there are no arrays of that type, or no memory.
pub(super) fn zeros(ty: &TensorType) -> Result<Retained<MLMultiArray>> {
    let array = match picture(ty).and_then(|size| shared(ty, size)) {
        Some(array) => array,
        None => plain(ty)?,
    };
    match ty.dtype {
        DataType::Int32 => access::<i32, _>(&array, |elements, _| elements.fill(0))?,
        _ => access::<f16, _>(&array, |elements, _| elements.fill(f16::ZERO))?,
    }
    Ok(array)
}

fn numbers(shape: &[usize]) -> Retained<NSArray<NSNumber>> {
    let numbers: Vec<_> = shape.iter().map(|&n| NSNumber::new_usize(n)).collect();
    NSArray::from_retained_slice(&numbers)
}

/// An array in an IOSurface; none if there is none of that size.
fn shared(ty: &TensorType, (width, height): (usize, usize)) -> Option<Retained<MLMultiArray>> {
    // SAFETY: a constant of the framework.
    let key = unsafe { kCVPixelBufferIOSurfacePropertiesKey };
    // Without properties it gets those that it needs.
    let properties = CFDictionary::<CFString, CFString>::empty();
    let attributes = CFDictionary::<CFString, _>::from_slices(&[key], &[&*properties]);
    let mut buffer: *mut CVPixelBuffer = ptr::null_mut();
    // SAFETY: the attributes are what their key wants, and the result is written to a place that is
    // there.
    let status = unsafe {
        CVPixelBufferCreate(
            None,
            width,
            height,
            kCVPixelFormatType_OneComponent16Half,
            Some(attributes.as_opaque()),
            NonNull::from(&mut buffer),
        )
    };
    let buffer = NonNull::new(buffer).filter(|_| status == kCVReturnSuccess)?;
    // SAFETY: it was created for us.
    let buffer = unsafe { CFRetained::from_raw(buffer) };
    // SAFETY: the picture is as wide as the last dimension and as high as the others together.
    Some(unsafe {
        let shape = numbers(&ty.shape);
        MLMultiArray::initWithPixelBuffer_shape(MLMultiArray::alloc(), &buffer, &shape)
    })
}

/// An array in memory of Core ML's own.
fn plain(ty: &TensorType) -> Result<Retained<MLMultiArray>> {
    let dtype = match ty.dtype {
        DataType::Float16 => f16::TYPE,
        DataType::Int32 => i32::TYPE,
        _ => {
            return Err(Error::Unsupported {
                what: format!("an input or output {ty}"),
                instead: "only fp16 and int32 are".into(),
            });
        }
    };
    let doing = || format!("make an array {ty}");
    // SAFETY: plain values.
    let made = unsafe {
        let shape = numbers(&ty.shape);
        MLMultiArray::initWithShape_dataType_error(MLMultiArray::alloc(), &shape, dtype)
    };
    made.map_err(|error| failed(doing(), failure(&error)))
}

/// Lets `work` at the elements of an array.
///
/// # Errors
/// If they are of another type, or lie in an order that is not known.
pub(super) fn access<E: Element, R>(
    array: &MLMultiArray,
    work: impl FnOnce(&mut [E], &RowLayout) -> R,
) -> Result<R> {
    // SAFETY: a plain property.
    let found = unsafe { array.dataType() };
    let shape = shape(array);
    if found != E::TYPE {
        return Err(Error::Unsupported {
            what: format!("an array {shape:?} of type {}", found.0),
            instead: format!("type {} is expected", E::TYPE.0),
        });
    }
    let work = Cell::new(Some(work));
    let result = Cell::new(None);
    let each = |base: NonNull<c_void>, bytes: NSInteger, strides: NonNull<NSArray<NSNumber>>| {
        let Some(work) = work.take() else { return };
        let len = usize::try_from(bytes).unwrap_or(0) / size_of::<E>();
        // SAFETY: it is valid while the block runs.
        let strides = sizes(unsafe { strides.as_ref() });
        // SAFETY: the array has the memory for this block alone while it runs, aligned for its type, of
        // which any bits are a value.
        let elements = unsafe { std::slice::from_raw_parts_mut(base.cast::<E>().as_ptr(), len) };
        result
            .set(Some(RowLayout::new(&shape, &strides, len).map(|layout| work(elements, &layout))));
    };
    autoreleasepool(|_| {
        // SAFETY: Core ML calls the block before it returns, and does not keep it.
        unsafe { array.getMutableBytesWithHandler(&RcBlock::new(each)) };
    });
    result.take().unwrap_or_else(|| {
        Err(failed("show an array".into(), "it did not call the block that was given".into()))
    })
}

/// The dimensions of an array.
pub(super) fn shape(array: &MLMultiArray) -> Vec<usize> {
    // SAFETY: a plain property.
    let shape = unsafe { array.shape() };
    sizes(&shape)
}

fn sizes(numbers: &NSArray<NSNumber>) -> Vec<usize> {
    numbers.iter().map(|number| number.as_usize()).collect()
}
