"""The demonstration: real flights, a failing HTTP service, two workers, and a verdict taken from outside."""
