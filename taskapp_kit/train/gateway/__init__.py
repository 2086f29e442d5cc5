"""An OpenAI-compatible server in the trainer that records each generation of an attempt: `gateway_server.Gateway`.

call_reader       a request's body -> GatewayCall
recognition       its conversation -> prompt ids and the recorded turn that they continue; other speakers than the policy
attempt           one attempt: its generations, turns, limits and counts
pace              the sampler's speed and the deadlines of generations
answers           a finished generation -> a chat completion, a completion, or a stream of either
gateway_options   where the gateway listens, and at which address task apps reach it
gateway_server    routes, capabilities, delivery
"""
