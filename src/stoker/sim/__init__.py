"""The simulated accelerator and the simulated remote store: develop, test and tune the data path without either."""
