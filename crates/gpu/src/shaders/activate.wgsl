// Activation functions.

// Some drivers' tanh overflows.
fn tanh_of(x: f32) -> f32 {
    return tanh(clamp(x, -20.0, 20.0));
}

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(-x));
}

// The error function to 1.5e-7 (Abramowitz and Stegun 7.1.26).
fn erf(x: f32) -> f32 {
    let z = abs(x);
    let t = 1.0 / (1.0 + 0.3275911 * z);
    let a = (1.061405429 * t - 1.453152027) * t + 1.421413741;
    let b = ((a * t - 0.284496736) * t + 0.254829592) * t;
    return sign(x) * (1.0 - b * exp(-z * z));
}

fn activate(kind: u32, x: f32) -> f32 {
    switch kind {
        case 0u: { return x * sigmoid(x); }
        case 1u: { return 0.5 * x * (1.0 + erf(x * 0.70710678)); }
        case 2u: { return 0.5 * x * (1.0 + tanh_of(0.7978845608 * (x + 0.044715 * x * x * x))); }
        default: { return max(x, 0.0); }
    }
}

// Gate and up joined: an activation of `gate` times `up`; kind 4 is gpt-oss's.
fn gated(kind: u32, alpha: f32, limit: f32, gate: f32, up: f32) -> f32 {
    if (kind == 4u) {
        let low = min(gate, limit);
        return low * sigmoid(alpha * low) * (clamp(up, -limit, limit) + 1.0);
    }
    return activate(kind, gate) * up;
}
