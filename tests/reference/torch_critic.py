"""RRL's critic with PyTorch's own cross-entropy, autograd and Adam: V(s) = sigmoid(w x + b) on standardised states."""

import torch


class TorchCritic:
    """x: hidden states minus a running mean over a running deviation, cut at 10 deviations, over sqrt(H)."""

    def __init__(self, rate, passes=8, decay=1e-4):
        self.rate, self.passes, self.decay = rate, passes, decay
        self.gradients = []  # (of w, of b) of every pass
        self.w = None

    @staticmethod
    def states(model, prompt, completion, cuts):
        """What enters the LM head at the last token of each prefix."""
        with torch.no_grad():
            hidden = model.model(input_ids=torch.tensor([[*prompt, *completion]])).last_hidden_state[0]
        return [hidden[len(prompt) + cut - 1].double().tolist() for cut in cuts]

    def value(self, states):
        spread = (self.square - self.centre**2).clamp(min=1e-8).sqrt()
        inputs = ((states - self.centre) / spread).clamp(-10, 10) / states.shape[1] ** 0.5
        return torch.sigmoid(inputs @ self.w + self.b)

    def loss(self, states, returns):
        cross_entropy = torch.nn.functional.binary_cross_entropy(self.value(states), returns)
        return cross_entropy + self.decay / 2 * (self.w**2).sum()

    def learn(self, features, returns):
        states = torch.tensor(features, dtype=torch.float64)
        returns = torch.tensor(returns, dtype=torch.float64)
        keep = 0.95
        if self.w is None:
            keep = 0.0
            self.w = torch.zeros(states.shape[1], dtype=torch.float64, requires_grad=True)
            self.b = torch.zeros((), dtype=torch.float64, requires_grad=True)
            self.centre, self.square = torch.zeros(states.shape[1]), torch.ones(states.shape[1])
            self.adam = torch.optim.Adam([self.w, self.b], lr=self.rate)
        self.centre = keep * self.centre + (1 - keep) * states.mean(0)
        self.square = keep * self.square + (1 - keep) * (states**2).mean(0)
        self.last = states, returns
        for _ in range(self.passes):
            self.adam.zero_grad()
            self.loss(states, returns).backward()
            self.gradients.append((self.w.grad.clone().numpy(), float(self.b.grad)))
            self.adam.step()

    def finite_differences(self):
        """The gradient against differences of the loss, for every weight and the bias."""
        self.adam.zero_grad()
        self.loss(*self.last).backward()
        for parameter in (self.w, self.b):
            flat = parameter.data.view(-1)
            for place, slope in enumerate(parameter.grad.view(-1).tolist()):
                ends = []
                for sign in (1, -1):
                    flat[place] += sign * 1e-6
                    ends.append(float(self.loss(*self.last).detach()))
                    flat[place] -= sign * 1e-6
                assert abs((ends[0] - ends[1]) / 2e-6 - slope) < 1e-6
