//! Tuples of the results of a task.

/// Passes the tuples of two to eight results to a macro, each as `COUNT: TYPE INDEX, …;`. The SDK and the native client
/// implement their traits of results for them.
#[macro_export]
macro_rules! for_result_tuples {
    ($implement:ident) => {
        $implement! {
            2: A 0, B 1;
            3: A 0, B 1, C 2;
            4: A 0, B 1, C 2, D 3;
            5: A 0, B 1, C 2, D 3, E 4;
            6: A 0, B 1, C 2, D 3, E 4, F 5;
            7: A 0, B 1, C 2, D 3, E 4, F 5, G 6;
            8: A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7;
        }
    };
}
